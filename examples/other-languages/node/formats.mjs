// Keys, ids, records, counters and receipts: protocol/core.md, Keys to Counters.
import { crc32 as crc } from 'node:zlib'

const ALPHABET = '-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz'
const BASE64 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'
const translate = (text, from, to) => [...text].map((c) => to[from.indexOf(c)]).join('')
const hex = (value, digits) => value.toString(16).padStart(digits, '0')
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
  let minutes = Math.ceil((ttl ?? Infinity) / 60000)
  if (minutes % 2 !== lowestBit) minutes += 1
  return `D-${node.slice(0, 8)}-${text}-${hex(Math.min(minutes, 0xfffe + lowestBit), 4)}`
}

export function decodeId(id) {
  const found = /^D-([0-9a-f]{8})-(-[-0-9A-Z_a-z]{23})-[0-9a-f]{4}$/.exec(id)
  if (!found) throw new RangeError(`job id ${JSON.stringify(id)}: its form is not that of an id`)
  const packed = Buffer.from(translate(found[2], ALPHABET, BASE64), 'base64')
  const [ms, seq] = [packed.readUIntBE(0, 6), packed.readUInt32BE(6)]
  if (seq < 1000000000 || ms === 0) throw new RangeError(`job id ${id}: its number is not valid`)
  const [name, epoch] = [packed.toString('hex', 10, 14), packed.toString('hex', 14)]
  return { node: found[1], number: `${ms}-${seq}`, crc32: name, epoch }
}

const escape = (text) => Buffer.from(text).toString('latin1').replace(/[^ -~]|[%;=\\]/g, percent)

function unescape(text) {
  const byte = (_, digits) => String.fromCharCode(parseInt(digits, 16))
  return Buffer.from(text.replace(/%([0-9a-fA-F]{2})/g, byte), 'latin1').toString()
}

/** `retry` is the policy, [attempts, base, cap]; null leaves a part to the queue. */
export function encodeRecord({ body, codec, lease, ttl, retry, headers = {}, stable }) {
  const named = Object.entries(headers).map(([name, value]) => [`h.${escape(name)}`, escape(value)])
  const first = Object.entries({ l: lease, t: ttl, p: retry?.join(','), c: codec || null })
  const given = [...first, ...named, ['i', stable]].filter(([, value]) => value != null)
  const head = given.map(([name, value]) => `;${name}=${value}`)
  return Buffer.concat([Buffer.from(`1${head.join('')}\n`), Buffer.from(body)])
}

export function decodeRecord(record) {
  const end = record.indexOf('\n')
  const head = record.toString('latin1', 0, end)
  const [known, lease = null, ttl = null] = /^1(?:;l=(\d+))?(?:;t=(\d+))?(?=;|$)/.exec(head) ?? []
  if (!known) throw new RangeError(`record ${JSON.stringify(head)}: only version 1 is known`)
  const fields = head.split(';').slice(1).map((field) => field.split('='))
  const named = fields.filter(([name]) => name.startsWith('h.'))
  const headers = named.map(([name, value]) => [unescape(name.slice(2)), unescape(value)])
  return {
    lease: lease && Number(lease),
    ttl: ttl && Number(ttl),
    codec: Object.fromEntries(fields).c ?? '',
    headers: Object.fromEntries(headers),
    body: record.subarray(end + 1),
  }
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
