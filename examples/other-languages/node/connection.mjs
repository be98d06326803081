// Calls on one connection: protocol/core.md, Calling a script, Repeats and Connections.
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { key } from './formats.mjs'

const OPTIONS = {
  retryStrategy: null, // ioredis repeats nothing, and sends no commands of its own
  enableReadyCheck: false,
  disableClientInfo: true,
  protocol: 2,
  connectTimeout: 2000,
}
const REPEATED = /\b(READONLY|MASTERDOWN|LOADING|NOREPLICAS|BUSY|MISCONF|TRYAGAIN|UNBLOCKED) /

export const randomHex = (bytes) => randomBytes(bytes).toString('hex')

/** Open a connection that closes itself after `socketTimeout` ms without an answer. */
export const connect = (url, socketTimeout) =>
  new Redis(url, { ...OPTIONS, socketTimeout }).on('error', () => {}) // commands report it

/** True if the server has answered, and a repeat would not help. */
export const isFinal = (error) => error.name === 'ReplyError' && !REPEATED.test(error.message)

export class Connection {
  #redis = null
  #last = Promise.resolve()
  #nonce = 0
  #producer = randomHex(8)

  /** `folder` has the exported scripts. A call is repeated for `retryFor` ms. */
  constructor(url, folder, { prefix = 'penstock', retryFor = 5000 } = {}) {
    const { scripts } = JSON.parse(readFileSync(join(folder, 'index.json')))
    Object.assign(this, { url, folder, prefix, retryFor, scripts })
  }

  close() {
    this.#redis?.disconnect()
    this.#redis = null
  }

  /** Call a script, and return its reply. */
  script(name, queue, args) {
    const { keys, args: named, sha1, file } = this.scripts.find((one) => one.name === name)
    const nonce = String((this.#nonce += 1))
    return this.run(async (redis) => {
      const names = keys.map((kind) => key(this.prefix, queue, kind))
      const producer = named.includes('producer') ? [this.#producer] : []
      const call = [sha1, names.length, ...names, nonce, ...producer, ...args]
      const reply = await redis.evalshaBuffer(...call).catch(async (error) => {
        if (!error.message.includes('NOSCRIPT')) throw error
        await redis.call('SCRIPT', 'LOAD', readFileSync(join(this.folder, file)))
        return redis.evalshaBuffer(...call)
      })
      if (String(reply[1]) !== nonce) throw new Error('this is the reply to another call')
      return reply
    })
  }

  /** Run `step` after the earlier ones: one call at a time is under way. */
  run(step) {
    const result = this.#last.then(() => this.#repeat(step))
    this.#last = result.catch(() => {})
    return result
  }

  /** Repeat `step` on new connections until it is answered, or `retryFor` ms have passed. */
  async #repeat(step) {
    const until = performance.now() + this.retryFor
    for (let pause = 5; ; pause = Math.min(pause * 2, 250)) {
      try {
        this.#redis ??= connect(this.url, 10000)
        return await step(this.#redis)
      } catch (error) {
        if (!isFinal(error)) this.close()
        if (isFinal(error) || performance.now() > until) {
          this.#producer = randomHex(8) // the call may have run
          throw error
        }
        await sleep(Math.random() * pause)
      }
    }
  }
}
