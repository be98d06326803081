// Check the client's formats, and the scripts of its levels, against the vectors.
// The database of PENSTOCK_URL is emptied. See protocol/core.md, Vectors.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import * as formats from './formats.mjs'

const scripts = process.env.PENSTOCK_SCRIPTS ?? 'scripts'
const vectors = (name) => JSON.parse(readFileSync(join(scripts, 'vectors', `${name}.json`)))
const index = JSON.parse(readFileSync(join(scripts, 'index.json')))
const T0 = 1800000000000
const tables = (name) => placed(vectors(name))
let count = 0

// -- formats -------------------------------------------------------------------------------------
for (const one of tables('names').names) {
  assert.equal(formats.crc32(one.name), one.crc32)
  for (const [kind, wanted] of Object.entries(one.keys)) {
    assert.equal(formats.key(one.prefix, one.name, kind), wanted)
  }
  count += 1
}
for (const one of tables('ids').ids) {
  const { node, number, queue, epoch, ttl_ms: ttl, at_most_once: once, id, crc32 } = one
  assert.equal(formats.encodeId({ node, number, queue, epoch, ttl, lease: once ? 0 : null }), id)
  assert.deepEqual(formats.decodeId(id), { node, number, crc32, epoch })
  count += 1
}
for (const { id } of tables('ids').refused) {
  assert.throws(() => formats.decodeId(id), RangeError)
  count += 1
}
const records = tables('records')
for (const one of records.records) {
  const bytes = Buffer.from(one.record, 'latin1')
  const { lease_ms: lease, ttl_ms: ttl, priority, codec, headers } = one
  const { keep_ms: keep, key: jobKey, stable_id: stable } = one
  const body = Buffer.from(one.body, 'latin1')
  assert.deepEqual(formats.decodeRecord(bytes), { lease, ttl, codec, headers, body })
  const { max_attempts: attempts, base_ms: base, cap_ms: cap } = one.retry ?? {}
  const retry = one.retry && [attempts, base, cap]
  const isOurs = one.canonical && !one.dedup_id && !one.on_dead // levels of their own
  const options = { lease, ttl, retry, priority, keep, jobKey, codec, headers, stable, body }
  if (isOurs) assert.deepEqual(formats.encodeRecord(options), bytes)
  count += 1
}
for (const one of records.counters) {
  const { deliveries, nacks, crashes, releases, error } = formats.decodeCounters(one.value)
  const { value, ...wanted } = one
  assert.deepEqual({ deliveries, nacks, crashes, releases, error }, wanted, value)
  count += 1
}
for (const { counters, tag, receipt } of records.receipts) {
  assert.equal(formats.receipt(counters, tag), receipt)
  count += 1
}

// -- scripts -------------------------------------------------------------------------------------
function placed(value) {
  if (Array.isArray(value)) return value.map(placed)
  if (typeof value === 'string') return text(value)
  if (value === null || typeof value !== 'object') return value
  const entries = Object.entries(value)
  return Object.fromEntries(entries.map(([name, inner]) => [text(name), placed(inner)]))
}

function text(value) {
  const place = /<T0([+-]\d+)?(?:\|([0-9a-f]{3}|[-*][1-9])|\.(\d{3}))?>/g
  const times = value.replace(place, (_, plus, tag, micro) => {
    const at = T0 + Number(plus ?? 0)
    if (tag && tag[0] === '-') return String(at - Number(tag[1]) * 2 ** 42)
    if (tag && tag[0] === '*') return String(at * 16 + Number(tag[1]))
    if (tag) return String((at - 1735689600000) * 4096 + parseInt(tag, 16))
    return micro ? String(at * 1000 + Number(micro)) : String(at)
  })
  return times.replace(/<(\d+)\*([^])>/g, (_, times, one) => one.repeat(Number(times)))
}

const bytes = (value) => Buffer.from(String(value), 'latin1')
const plain = (value) => {
  if (Array.isArray(value)) return value.map(plain)
  return Buffer.isBuffer(value) ? value.toString('latin1') : value
}
function pairs(list) {
  const two = list.map((item, i) => [item, list[i + 1]])
  return Object.fromEntries(two.filter((_, i) => i % 2 === 0))
}

// Apply a JSON merge patch (RFC 7396): null removes, an object is merged, all else replaces.
function patched(value, patch) {
  if (patch === null || typeof patch !== 'object' || Array.isArray(patch)) return patch
  const result = { ...value }
  for (const [name, part] of Object.entries(patch)) {
    if (part === null) delete result[name]
    else result[name] = patched(result[name], part)
  }
  return result
}

// A case with what it takes from the case that it names in `from`, and both states whole.
function whole({ cases }, name) {
  const { from, before: own = {}, after: changes = {}, ...rest } = cases[name]
  const other = cases[from] ?? {}
  const before = patched(other.before ?? {}, own)
  return { now: '<T0>', ...other, lane: false, ...rest, before, after: patched(before, changes) }
}

function order(one, other) {
  const [[ms, seq], [otherMs, otherSeq]] = [one, other].map(([id]) => id.split('-').map(Number))
  return ms - otherMs || seq - otherSeq
}

async function load(redis, name, value) {
  const run = (command, ...words) => redis.callBuffer(command, ...words.map(bytes))
  if (value.fields) await run('HSET', name, ...Object.entries(value.fields).flat())
  else if (value.members) {
    const scores = Object.entries(value.members).map(([member, score]) => [score, member])
    await run('ZADD', name, ...scores.flat())
  } else if (value.items) await run('RPUSH', name, ...value.items)
  else if (value.value !== undefined) await run('SET', name, value.value)
  else {
    const entries = Object.entries(value.entries).sort(order)
    for (const [id, fields] of entries) await run('XADD', name, id, ...fields)
    if (!entries.length) {
      await run('XADD', name, value.last, 'x', 'x')
      await run('XDEL', name, value.last)
    } else await run('XSETID', name, value.last)
  }
  if (value.px !== undefined) await run('PEXPIRE', name, value.px)
}

async function dump(redis) {
  const run = async (word, ...words) => plain(await redis.callBuffer(word, ...words.map(bytes)))
  const space = {}
  for (const name of await run('KEYS', '*')) {
    const type = await run('TYPE', name)
    const value = {}
    if (type === 'hash') value.fields = pairs(await run('HGETALL', name))
    else if (type === 'zset') value.members = pairs(await run('ZRANGE', name, 0, -1, 'WITHSCORES'))
    else if (type === 'list') value.items = await run('LRANGE', name, 0, -1)
    else if (type === 'string') value.value = await run('GET', name)
    else {
      value.entries = Object.fromEntries(await run('XRANGE', name, '-', '+'))
      value.last = pairs(await run('XINFO', 'STREAM', name))['last-generated-id']
    }
    const px = await run('PTTL', name)
    if (px >= 0) value.px = px
    space[name] = value
  }
  return space
}

function compare(found, wanted) {
  assert.deepEqual(Object.keys(found).sort(), Object.keys(wanted).sort())
  for (const [name, value] of Object.entries(wanted)) {
    const { px, ...rest } = value
    const { px: left, ...has } = found[name]
    for (const [member, score] of Object.entries(rest.members ?? {})) {
      rest.members[member] = String(Number(score))
    }
    assert.deepEqual(has, rest, name)
    if (px === undefined) assert.equal(left, undefined, name)
    else assert.ok(left <= px && left > px - 30000, `${name}: ${left} of ${px} ms`)
  }
}

const redis = new Redis(process.env.PENSTOCK_URL ?? 'redis://127.0.0.1:6379/0', { protocol: 2 })
for (const name of ['enqueue', 'reserve', 'extend', 'ack', 'nack', 'release', 'bury']) {
  const source = readFileSync(join(scripts, `${name}.lua`), 'utf8')
  const file = vectors(name)
  const { keys: kinds, lane } = index.scripts.find((one) => one.name === name)
  const queueKeys = kinds.map((kind) => formats.key('penstock', 'q', kind))
  const named = (space) =>
    Object.fromEntries(Object.entries(placed(space)).map(([key, value]) => [file.prefix + key, value]))
  for (const title of Object.keys(file.cases)) {
    const one = whole(file, title)
    const keys = one.lane ? queueKeys.slice(0, lane) : queueKeys
    await redis.flushdb()
    for (const [key, value] of Object.entries(named(one.before))) await load(redis, key, value)
    const now = Number(text(one.now))
    const stamp = `{'${Math.floor(now / 1000)}', '${(now % 1000) * 1000 + 789}'}`
    const args = one.args.map((arg) => bytes(placed(arg)))
    const frozen = source.replaceAll("redis.call('TIME')", stamp)
    const reply = plain(await redis.callBuffer('EVAL', frozen, keys.length, ...keys, ...args))
    const wanted = one.reply.map((part) =>
      /^:<T0/.test(part) ? Number(text(part.slice(1))) : placed(part))
    try {
      assert.deepEqual(reply, wanted)
      compare(await dump(redis), named(one.after))
    } catch (error) {
      throw new Error(`${name}: ${title}`, { cause: error })
    }
    count += 1
  }
}
redis.disconnect()
console.log(`${count} vectors pass`)
