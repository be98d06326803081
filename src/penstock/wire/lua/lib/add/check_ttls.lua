-- Refuse records whose ttl does not end after their delay.
--- NEEDS  nonce records delay_ms delays
do -- few locals fit into a script
  --@include lib/add/expired_ttl
  for i = 1, delay_ms > 0 and #records or 0 do
    local ttl = expired_ttl(records[i], delays and delays[i] or delay_ms)
    if ttl then
      return {-19, nonce, 'ttl', ttl}
    end
  end
end
