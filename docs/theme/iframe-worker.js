// Browsers start no worker from a page that was opened from disk. This one runs in a hidden frame instead.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      const load = (source) => new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        Object.assign(script, { src: source, onload: resolve, onerror: reject });
        inside.document.body.appendChild(script);
      });
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) => urls.reduce((before, next) => before.then(() => load(next)), Promise.resolve());
      this.ready = load(new URL(url, location.href).href);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
