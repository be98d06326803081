-- Refuse a call if there is no queue, if it has `ended`, or if the caller does not have the role.
--- NEEDS  held nonce limit ended free holder id
--- GIVES  give_back
--@include pressure/lib/role (gives: tokens, last, is_ours, give_back)
if not limit then
  give_back()
  return {-1, nonce}
end
if ended then
  give_back()
  return {-2, nonce}
end
if held ~= '0' and not is_ours then
  return {0, nonce}
end
if tokens == 0 and not is_ours then
  return {-5, nonce, last or ''}
end
