// Keys, ids, records, counters and receipts: protocol/core.md, Keys to Counters. No server is needed.
import { crc32 as crc } from 'node:zlib'

const ALPHABET = '-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz'
const percent = (byte) => '%' + byte.toString(16).toUpperCase().padStart(2, '0')

export const crc32 = (name) => crc(Buffer.from(name)).toString(16).padStart(8, '0')

export function checkName(name) {
  const size = Buffer.byteLength(name)
  if (size < 1 || size > 1024 || name.includes('\0') || !name.isWellFormed()) {
    throw new RangeError(`queue name ${JSON.stringify(name)}: it must have 1 to 1024 bytes of UTF-8 without NUL`)
  }
  return name
}

export function key(prefix, name, kind) {
  const tag = checkName(name).replace(/[{}%\x00-\x1f\x7f]/g, (c) => percent(c.charCodeAt(0)))
  return `${prefix}:{${tag}}:${kind}`
}

export function encodeId({ node, number, queue, epoch, ttl = null, lease = null }) {
  const [ms, seq] = number.split('-').map(Number)
  const packed = ms.toString(16).padStart(12, '0') + seq.toString(16).padStart(8, '0') + crc32(queue) + epoch
  const bits = [...packed].map((digit) => parseInt(digit, 16).toString(2).padStart(4, '0')).join('')
  const text = bits.match(/.{6}/g).map((six) => ALPHABET[parseInt(six, 2)]).join('')
  const odd = lease === 0 ? 0 : 1
  let minutes = ttl === null ? 0xfffe + odd : Math.ceil(ttl / 60000)
  if (minutes % 2 !== odd) minutes += 1
  return `D-${node.slice(0, 8)}-${text}-${Math.min(minutes, 0xfffe + odd).toString(16).padStart(4, '0')}`
}

export function decodeId(id) {
  const found = /^D-([0-9a-f]{8})-(-[-0-9A-Z_a-z]{23})-([0-9a-f]{4})$/.exec(id)
  if (!found) throw new RangeError(`job id ${JSON.stringify(id)}: its form is not that of an id`)
  const bits = [...found[2]].map((c) => ALPHABET.indexOf(c).toString(2).padStart(6, '0')).join('')
  const hex = bits.match(/.{4}/g).map((four) => parseInt(four, 2).toString(16)).join('')
  const [ms, seq] = [parseInt(hex.slice(0, 12), 16), parseInt(hex.slice(12, 20), 16)]
  if (seq < 1000000000 || ms === 0) throw new RangeError(`job id ${JSON.stringify(id)}: its number is not valid`)
  return { node: found[1], number: `${ms}-${seq}`, crc32: hex.slice(20, 28), epoch: hex.slice(28) }
}

const escape = (text) => Buffer.from(text).toString('latin1').replace(/[^ -~]|[%;=\\]/g, (c) => percent(c.charCodeAt(0)))

const unescape = (text) =>
  Buffer.from(text.replace(/%([0-9a-fA-F]{2})/g, (_, hex) => String.fromCharCode(parseInt(hex, 16))), 'latin1').toString()

/** `retry` is the policy, [attempts, base, cap]; null leaves a part to the queue. */
export function encodeRecord({ body, codec = '', lease = null, ttl = null, retry = null, headers = {}, stable = '' }) {
  let head = '1'
  if (lease !== null) head += `;l=${lease}`
  if (ttl !== null) head += `;t=${ttl}`
  if (retry) head += `;p=${retry.map((part) => part ?? '').join(',')}`
  if (codec) head += `;c=${codec}`
  for (const [name, value] of Object.entries(headers)) head += `;h.${escape(name)}=${escape(value)}`
  if (stable) head += `;i=${stable}`
  return Buffer.concat([Buffer.from(head + '\n'), Buffer.from(body)])
}

export function decodeRecord(record) {
  const end = record.indexOf(10)
  const [version, ...fields] = record.toString('latin1', 0, end).split(';')
  if (version !== '1') throw new RangeError(`record of version ${JSON.stringify(version)}: only 1 is known`)
  const job = { lease: null, ttl: null, codec: '', headers: {}, body: record.subarray(end + 1) }
  fields.forEach((field, i) => {
    const [name, value] = [field.split('=', 1)[0], field.slice(field.indexOf('=') + 1)]
    if (name === 'l' && i === 0) job.lease = Number(value)
    else if (name === 't' && i <= 1) job.ttl = Number(value)
    else if (name === 'c') job.codec = value
    else if (name.startsWith('h.')) job.headers[unescape(name.slice(2))] = unescape(value)
  })
  return job
}

export function decodeCounters(text) {
  const found = /^(\d+)(\+?) (\d+) (\d+) (\d+)(?: ([^]*))?$/.exec(text || '1 0 0 0')
  const [first, nacks, crashes, releases] = [found[1], found[3], found[4], found[5]].map(Number)
  return { next: first, deliveries: first - (found[2] ? 1 : 0), nacks, crashes, releases, error: found[6] ?? '' }
}

export const receipt = (counters, tag) => `${decodeCounters(counters).next}-${tag.toString(16).padStart(3, '0')}`
