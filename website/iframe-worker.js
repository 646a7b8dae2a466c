// Browsers start no worker from file://, and the theme's search runs in one. There this class takes its place:
// the worker's script runs in a hidden frame, whose messages are passed on. Over http nothing is replaced.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside.importScripts = (...scripts) =>
        Promise.all(scripts.map((script) => this.load(new URL(script, url).href)))
      this.load(url).then(() => {
        const early = this.waiting
        this.waiting = null
        early.forEach((data) => this.postMessage(data))
      })
    }

    load(src) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script")
        Object.assign(script, { src, onload: resolve, onerror: reject })
        this.inside.document.body.append(script)
      })
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.inside.dispatchEvent(new MessageEvent("message", { data }))
    }

    set onmessage(listener) {
      this.addEventListener("message", listener)
    }

    terminate() {
      this.inside.frameElement.remove()
    }
  }
}
