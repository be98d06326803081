// Keys, ids, records, counters and receipts: protocol/core.md, Keys to Counters. No server is needed.
import { crc32 as crc } from 'node:zlib'

const ALPHABET = '-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz'
const BASE64 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'
const translate = (text, from, to) => [...text].map((c) => to[from.indexOf(c)]).join('')
const percent = (c) => '%' + c.charCodeAt(0).toString(16).toUpperCase().padStart(2, '0')

export const crc32 = (name) => crc(Buffer.from(name)).toString(16).padStart(8, '0')

export function key(prefix, name, kind) {
  const size = Buffer.byteLength(name)
  if (size < 1 || size > 1024 || name.includes('\0') || !name.isWellFormed()) {
    throw new RangeError(`queue name ${JSON.stringify(name)}: it must have 1 to 1024 bytes of UTF-8 without NUL`)
  }
  return `${prefix}:{${name.replace(/[{}%\x00-\x1f\x7f]/g, percent)}}:${kind}`
}

export function encodeId({ node, number, queue, epoch, ttl, lease }) {
  const [ms, seq] = number.split('-').map(Number)
  const packed = ms.toString(16).padStart(12, '0') + seq.toString(16).padStart(8, '0') + crc32(queue) + epoch
  const text = translate(Buffer.from(packed, 'hex').toString('base64'), BASE64, ALPHABET)
  const lowestBit = lease === 0 ? 0 : 1
  const none = 0xfffe + lowestBit
  let minutes = ttl == null ? none : Math.ceil(ttl / 60000)
  if (minutes % 2 !== lowestBit) minutes += 1
  return `D-${node.slice(0, 8)}-${text}-${Math.min(minutes, none).toString(16).padStart(4, '0')}`
}

export function decodeId(id) {
  const found = /^D-([0-9a-f]{8})-(-[-0-9A-Z_a-z]{23})-[0-9a-f]{4}$/.exec(id)
  if (!found) throw new RangeError(`job id ${JSON.stringify(id)}: its form is not that of an id`)
  const packed = Buffer.from(translate(found[2], ALPHABET, BASE64), 'base64')
  const [ms, seq, hex] = [packed.readUIntBE(0, 6), packed.readUInt32BE(6), packed.toString('hex')]
  if (seq < 1000000000 || ms === 0) throw new RangeError(`job id ${JSON.stringify(id)}: its number is not valid`)
  return { node: found[1], number: `${ms}-${seq}`, crc32: hex.slice(20, 28), epoch: hex.slice(28) }
}

const escape = (text) => Buffer.from(text).toString('latin1').replace(/[^ -~]|[%;=\\]/g, percent)
const unescape = (text) =>
  Buffer.from(text.replace(/%([0-9a-fA-F]{2})/g, (_, hex) => String.fromCharCode(parseInt(hex, 16))), 'latin1').toString()

/** `retry` is the policy, [attempts, base, cap]; null leaves a part to the queue. */
export function encodeRecord({ body, codec, lease, ttl, retry, headers = {}, stable }) {
  const named = Object.entries(headers).map(([name, value]) => [`h.${escape(name)}`, escape(value)])
  const fields = [['l', lease], ['t', ttl], ['p', retry?.join(',')], ['c', codec || null], ...named, ['i', stable]]
  const head = fields.filter(([, value]) => value != null).map(([name, value]) => `;${name}=${value}`)
  return Buffer.concat([Buffer.from(`1${head.join('')}\n`), Buffer.from(body)])
}

export function decodeRecord(record) {
  const end = record.indexOf('\n')
  const head = record.toString('latin1', 0, end)
  const [known, lease = null, ttl = null] = /^1(?:;l=(\d+))?(?:;t=(\d+))?(?=;|$)/.exec(head) ?? []
  if (!known) throw new RangeError(`record ${JSON.stringify(head)}: only version 1 is known`)
  const fields = head.split(';').slice(1).map((field) => field.split('='))
  const named = fields.filter(([name]) => name.startsWith('h.'))
  return {
    lease: lease && Number(lease),
    ttl: ttl && Number(ttl),
    codec: Object.fromEntries(fields).c ?? '',
    headers: Object.fromEntries(named.map(([name, value]) => [unescape(name.slice(2)), unescape(value)])),
    body: record.subarray(end + 1),
  }
}

export function decodeCounters(text) {
  const found = /^(\d+)(\+?) (\d+) (\d+) (\d+)(?: ([^]*))?$/.exec(text || '1 0 0 0')
  const [next, nacks, crashes, releases] = [found[1], found[3], found[4], found[5]].map(Number)
  return { next, deliveries: next - found[2].length, nacks, crashes, releases, error: found[6] ?? '' }
}

export const receipt = (counters, tag) => `${decodeCounters(counters).next}-${tag.toString(16).padStart(3, '0')}`
