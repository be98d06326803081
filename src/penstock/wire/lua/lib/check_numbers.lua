-- Refuse what is no job number.
--- NEEDS  nonce numbers
--@include lib/number
for i = 1, #numbers do
  if not is_number(numbers[i]) then
    return {-19, nonce, 'number', string.sub(numbers[i], 1, 200)}
  end
end
