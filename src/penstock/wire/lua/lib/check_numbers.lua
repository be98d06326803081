-- Refuse arguments that are not job numbers.
--- NEEDS  nonce numbers
--@include lib/is_number
for i = 1, #numbers do
  if not is_number(numbers[i]) then
    return {-19, nonce, 'number', string.sub(numbers[i], 1, 200)}
  end
end
