--- Add jobs with dedup ids. If a job with the same id exists, `mode` decides what happens to both.
--- KEYS     @queue
--- ARGV     nonce producer create delay bound wait role mode [record...]
---          mode    '' = the existing job stays as it is; letters: u = replace its content, d = (with u) restart its delay,
---                  q = if it is active, the new job waits for its end; if it is done, for the end of its window; s = the
---                  ids are taken until their jobs start, e = the ids are taken from now on for their windows, whatever
---                  happens to the jobs
---          record  1 to 1000 of them, each with a field `d`
---          delay   as in enqueue; or, if mode has no u, d and q, one for each record, separated by commas
---          nonce, producer, create, bound, wait, role   as in enqueue
--- BOUNDS   nonce 1 9007199254740991  bound? 0 9007199254740991  wait 0 3162240000000
--- META     v epoch last seen off paused uses max_length full alarm enqueued replicas @producer=before
--- RETURNS  {1, nonce, first, count, epoch, created, repeat, scheduled, replicas, others: (index, what, number, state, header)...}  first
---                               to scheduled: as in enqueue, for the jobs that were added, in order. others: each record that
---                               was not simply added. index: from 1; what: 2 replaced the content of the existing job,
---                               3 added (one of first, first + 1, ...) and waits for the end of the existing job,
---                               0 duplicate, -2 only one of the two has lease 0; number, state and header (version, lease
---                               and ttl): of the job that has the id (3: of the added one); state: ready, scheduled, active,
---                               once, or window = done, then number and header are empty
---          {-3, nonce, waiting, limit, expired}              as in enqueue
---          {-4, nonce, paused}                               as in enqueue
---          {-5, nonce}                                       as in enqueue
---          {-6, nonce, version}                              written by a newer protocol
---          {-7, nonce, last}                                 as in enqueue
---          {-8, nonce}                                       damaged: jobs, but no meta
---          {-10, nonce, index}                               as in enqueue, or the record has no dedup id
---          {-14, nonce}                                      as in enqueue
---          {-15, nonce, kind, owner, left}                   as in enqueue
---          {-16, nonce, kind}                                as in enqueue
---          {-19, nonce, name, value}                         malformed argument: create, delay, or of a record the lease, ttl or window,
---                                                            or its priority on an ordered queue
---          {-21, nonce}                                      no such open batch
--- FROM none, ready, active  TO ready, scheduled, active
if string.find(mode, '[udq]') and string.find(delay, ',', 1, true) then
  return {-19, nonce, 'delay', string.sub(delay, 1, 200)}
end
--@include lib/checks/check_version
--@include lib/dedup/claim_records
local reply = claim_records(records, producer, create, delay, bound, wait, role, mode, records)
return reply
