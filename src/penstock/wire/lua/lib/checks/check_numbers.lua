-- Refuse arguments that are not job numbers, and more than 1000.
--- NEEDS  nonce numbers
--@include lib/checks/is_number
for i = 1, #numbers do
  if i > 1000 or not is_number(numbers[i]) then
    return {-19, nonce, 'number', string.sub(numbers[i], 1, 200)}
  end
end
