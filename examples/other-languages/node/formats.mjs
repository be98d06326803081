// Keys, ids, records, counters and receipts: protocol/core.md, Keys to Counters.
import { createHash } from 'node:crypto'
import { crc32 as crc } from 'node:zlib'

const ALPHABET = '-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz'
const BASE64 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'
const translate = (text, from, to) => [...text].map((c) => to[from.indexOf(c)]).join('')
export const hex = (value, digits) => value.toString(16).padStart(digits, '0')
const percent = (c) => '%' + hex(c.charCodeAt(0), 2).toUpperCase()

export const crc32 = (name) => hex(crc(Buffer.from(name)), 8)

export function key(prefix, name, kind) {
  const size = Buffer.byteLength(name)
  if (size < 1 || size > 1024 || name.includes('\0') || !name.isWellFormed()) {
    throw new RangeError(`queue name ${JSON.stringify(name)}: not 1 to 1024 bytes of UTF-8, or NUL`)
  }
  return `${prefix}:{${name.replace(/[{}%\x00-\x1f\x7f]/g, percent)}}:${kind}`
}

/** `ttl` in ms, or null. A job with lease 0 is delivered at most once. */
export function encodeId({ node, number, queue, epoch, ttl, lease }) {
  const [ms, seq] = number.split('-').map(Number)
  const packed = hex(ms, 12) + hex(seq, 8) + crc32(queue) + epoch
  const text = translate(Buffer.from(packed, 'hex').toString('base64'), BASE64, ALPHABET)
  const lowestBit = lease === 0 ? 0 : 1
  const minutes = 2 * Math.ceil(((ttl ?? Infinity) / 60000 - lowestBit) / 2) + lowestBit
  return `D-${node.slice(0, 8)}-${text}-${hex(Math.min(minutes, 0xfffe + lowestBit), 4)}`
}

export function decodeId(id) {
  const [, node, text] = /^D-([0-9a-f]{8})-(-[-0-9A-Z_a-z]{23})-[0-9a-f]{4}$/.exec(id) ?? []
  const packed = Buffer.from(translate(text ?? '', ALPHABET, BASE64), 'base64').toString('hex')
  const [ms, seq] = [parseInt(packed.slice(0, 12), 16), parseInt(packed.slice(12, 20), 16)]
  if (!ms || seq < 1000000000) throw new RangeError(`job id ${JSON.stringify(id)} is not valid`)
  return { node, number: `${ms}-${seq}`, crc32: packed.slice(20, 28), epoch: packed.slice(28) }
}

const latin1 = (text) => Buffer.from(text).toString('latin1')
const escape = (text) => latin1(text).replace(/[^ -~]|[%;=\\]/g, percent)

const keyHash = (text) => createHash('sha1').update(text).digest('hex').slice(0, 13)

/**
 * `retry` is the policy, [attempts, base, cap]; null leaves a part to the queue. `priority`: 1 to 9.
 * `keep`: ms for which the result is kept. `jobKey`: the key of the job (protocol/keys.md).
 */
export function encodeRecord(options) {
  const { body, codec, lease, ttl, retry, priority, keep, jobKey, headers = {}, stable } = options
  const named = Object.entries(headers).map(([name, value]) => [`h.${escape(name)}`, escape(value)])
  const policy = priority ? [...(retry ?? [null, null, null]), priority] : retry
  const [p, q] = [policy?.join(','), jobKey && keyHash(jobKey)]
  const first = Object.entries({ l: lease, t: ttl, p, k: keep, q, c: codec || null })
  const given = [...first, ...named, ['i', stable]].filter(([, value]) => value != null)
  const head = given.map(([name, value]) => `;${name}=${value}`)
  return Buffer.concat([Buffer.from(`1${head.join('')}\n`), Buffer.from(body)])
}

export function decodeRecord(record) {
  const end = record.indexOf('\n')
  const [version, ...fields] = record.toString('latin1', 0, end).split(';')
  if (version !== '1') throw new RangeError(`record of version ${version}: only 1 is known`)
  const pairs = fields.map((field) => field.split('='))
  const named = pairs.filter(([name]) => name.startsWith('h.'))
  const headers = named.map(([name, value]) => [name.slice(2), value].map(decodeURIComponent))
  const { l, t, c: codec = '' } = Object.fromEntries(pairs)
  const [lease, ttl] = [l, t].map((field) => (field ? Number(field) : null))
  const body = record.subarray(end + 1)
  return { lease, ttl, codec, headers: Object.fromEntries(headers), body }
}

/** Return the lease of a job in ms: its own, or the queue's but at most a tenth of the ttl. */
export const leaseOf = ({ lease, ttl }, queueLease) =>
  lease ?? Math.min(queueLease, Math.max(1000, Math.floor((ttl ?? Infinity) / 10)))

export function decodeCounters(text) {
  const found = /^(\d+)(\+?) (\d+) (\d+) (\d+)(?: ([^]*))?$/.exec(text || '1 0 0 0')
  const [next, nacks, crashes, releases] = [1, 3, 4, 5].map((i) => Number(found[i]))
  const [deliveries, attempt, error] = [next - found[2].length, 1 + nacks + crashes, found[6] ?? '']
  return { next, deliveries, attempt, nacks, crashes, releases, error }
}

export const receipt = (counters, tag) => `${decodeCounters(counters).next}-${hex(tag, 3)}`
