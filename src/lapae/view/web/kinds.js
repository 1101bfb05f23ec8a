"use strict";
// Three ways to show and edit a sample: as a picture, as a table of its columns, as lines. Each has draw(), which shows
// `state` (values, hidden, sample, found), and take(), called when another sample comes; editing calls changed().
// state.visible() are the values as the server is sent them: null where hidden or missing.
function asPicture(about, map, state, changed) {
  const [channels, height, width] = about.shape, canvas = $("input");
  let last = null;

  function draw() {
    const plane = height * width, found = state.sample;
    paint($("reconstruction"), found.mean);
    for (const name of ["width", "blame"]) paint($(name), found[name], map.colours);
    $("width-top").textContent = readable(found.width.top, 3);
    $("blame-top").textContent = `${readable(100 * found.blame.top, 2)} %`;
    if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
    const context = canvas.getContext("2d"), pixels = context.createImageData(width, height);
    for (let i = 0; i < plane; i++) {
      const checker = ((i % width) + Math.floor(i / width)) % 2 ? [205, 95, 35] : [165, 70, 25];
      for (let k = 0; k < 3; k++) {
        const value = state.values[channels < 3 ? i : k * plane + i];
        pixels.data[4 * i + k] = state.hidden[i] || value === null ? checker[k] : 255 * value / about.most;
      }
      pixels.data[4 * i + 3] = 255;
    }
    context.putImageData(pixels, 0, 0);
  }

  function brush(event) {
    const [u, v] = latentMap.place(canvas, event), x = u * width, y = v * height;
    const radius = Number($("brush").value) / 9 * Math.max(width, height) / 4, [x0, y0] = last || [x, y];
    const steps = Math.max(1, Math.ceil(Math.hypot(x - x0, y - y0)));
    for (let s = 0; s <= steps; s++) {
      const cx = x0 + (x - x0) * s / steps, cy = y0 + (y - y0) * s / steps;
      for (let r = Math.max(0, Math.floor(cy - radius)); r <= Math.min(height - 1, cy + radius); r++)
        for (let c = Math.max(0, Math.floor(cx - radius)); c <= Math.min(width - 1, cx + radius); c++)
          if (Math.hypot(c + 0.5 - cx, r + 0.5 - cy) <= Math.max(radius, 0.71)) state.hidden[r * width + c] = 1;
    }
    last = [x, y];
    changed();
  }
  canvas.addEventListener("pointerdown", (event) => { if (event.isTrusted) canvas.setPointerCapture(event.pointerId); last = null; brush(event); });
  canvas.addEventListener("pointermove", (event) => { if (event.buttons & 1) brush(event); });
  $("pictures").hidden = $("brush-choice").hidden = false;
  return { draw, take() {}, size: height * width };
}

function asTable(about, map, state, changed) {
  const place = (f, value) => 100 * latentMap.clamp((value - f.low) / Math.max(f.high - f.low, 1e-12));
  const expects = { word: "one of its categories", date: "a date such as 2024-12-31" };
  const rows = about.named.map((feature, i) => {
    const row = document.createElement("div");
    row.className = "feature";
    row.innerHTML = '<span class="name"></span><input type="text" placeholder="empty"><span class="track"><i></i><b></b><u></u></span><span class="value"></span><span class="blame"></span>';
    const [name, input, track, text, share] = row.children;
    name.textContent = name.title = feature.name;
    input.setAttribute("aria-label", feature.name);
    if (feature.kind === "word") {
      const words = document.createElement("datalist");
      input.setAttribute("list", words.id = `words-${i}`);
      words.append(...feature.words.map((word) => new Option(word, word)));
      row.append(words);
    }
    input.addEventListener("input", () => {
      const value = meant(feature, input.value.trim()), fine = value === null || Number.isFinite(value);
      input.setAttribute("aria-invalid", String(!fine));
      if (!fine) return say(`${feature.name}: expected ${expects[feature.kind] || "a number"}, or nothing.`);
      state.values = state.values.slice();
      state.values[i] = value;
      state.hidden[i] = 0;
      changed();
    });
    $("table").append(row);
    return { row, input, track, text, share };
  });

  function draw() {
    const seen = state.visible();
    rows.forEach(({ row, input, track, text, share }, i) => {
      const feature = about.named[i], given = seen[i], guess = given === null && state.found, word = feature.kind === "word";
      const { mean, low, high } = guess ? state.found : state.sample;
      const [band, bar, dot] = track.children, from = place(feature, low[i]), to = place(feature, high[i]);
      band.style.left = `${from}%`;
      band.style.width = `${Math.max(to - from, 0.5)}%`;
      bar.style.left = `${place(feature, mean[i])}%`;
      dot.hidden = given === null;
      dot.style.left = `${place(feature, given)}%`;
      track.querySelectorAll("s").forEach((mark) => mark.remove());
      if (guess) for (const sample of state.found.samples) {
        const mark = document.createElement("s");
        mark.style.left = `${place(feature, sample[i])}%`;
        track.append(mark);
      }
      text.textContent = (word ? told(feature, mean[i]) : `${told(feature, low[i], 3)} to ${told(feature, high[i], 3)}`) + (guess ? " (filled in)" : "");
      row.classList.toggle("surprising", given !== null && (given < low[i] || given > high[i]));
      const part = Math.round(100 * state.sample.blame[i]);
      share.textContent = part ? `${part} %` : "";
      share.style.setProperty("--share", `${part}%`);
      if (state.hidden[i]) input.value = "";
      input.placeholder = guess ? `${told(feature, mean[i], 3)} ?` : "empty";
    });
  }

  function take() {
    rows.forEach(({ input }, i) => {
      const value = state.values[i], plain = ["number", "count"].includes(about.named[i].kind);
      input.value = value === null ? "" : plain ? String(Number(value.toPrecision(6))) : told(about.named[i], value);
    });
  }
  $("table").hidden = $("table-key").hidden = false;
  return { draw, take, size: rows.length, looksAgain: true };
}

// One strip per channel of a window (T, channels), on a scale of its own; one strip for other arrays.
function asLines(about, map, state, changed) {
  const { fit, css } = latentMap, chart = $("chart"), size = about.shape.reduce((n, side) => n * side, 1);
  const names = about.view.channels, shown = names.length ? [...names.keys()] : [0], stride = names.length ? about.shape[1] : 1;
  const steps = size / stride, of = (values, channel) => Array.from({ length: steps }, (_, t) => values[t * stride + channel]);
  let last = null;

  function draw() {
    const [context, w, h] = fit(chart), seen = state.visible(), tall = h / shown.length;
    const { mean, low: lower, high: upper, blame } = state.sample, most = Math.max(...blame);
    shown.forEach((channel, s) => {
      const m = of(mean, channel), from = of(lower, channel), to = of(upper, channel), given = of(seen, channel), share = of(blame, channel);
      const samples = state.found ? state.found.samples.map((sample) => of(sample, channel)) : [];
      const all = [...given.filter((v) => v !== null), ...m, ...samples.flat()], low = Math.min(...all), high = Math.max(...all, low + 1e-9);
      const x = (i) => i / Math.max(steps - 1, 1) * w, y = (v) => (s + 1) * tall - 8 - (v - low) / (high - low) * (tall - (shown.length > 1 ? 26 : 16));
      const line = (values, colour, thick, where = () => true) => {
        context.strokeStyle = colour; context.lineWidth = thick; context.beginPath();
        let pen = false;
        values.forEach((v, i) => { if (v === null || !where(i)) { pen = false; return; } context[pen ? "lineTo" : "moveTo"](x(i), y(v)); pen = true; });
        context.stroke();
      };
      context.save();
      context.beginPath(); context.rect(0, s * tall, w, tall); context.clip();
      context.fillStyle = css("--accent"); context.globalAlpha = 0.22; context.beginPath();
      to.forEach((v, i) => context[i ? "lineTo" : "moveTo"](x(i), y(v)));
      for (let i = steps - 1; i >= 0; i--) context.lineTo(x(i), y(from[i]));
      context.fill();
      context.fillStyle = css("--c3");
      share.forEach((v, i) => { context.globalAlpha = 0.5 * v / (most || 1); context.fillRect(x(i) - w / steps / 2, s * tall, w / steps, tall); });
      context.globalAlpha = 1;
      line(m, css("--accent"), 1.5);
      line(given, css("--ink"), 1.2);
      for (const sample of samples) line(sample, css("--c1"), 1, (i) => given[i] === null || given[i + 1] === null || given[i - 1] === null);
      if (shown.length > 1) {
        context.fillStyle = css("--soft"); context.font = "11px system-ui, sans-serif";
        context.fillText(names[channel], 6, s * tall + 13);
        context.fillStyle = css("--line"); context.fillRect(0, s * tall, w, 1);
      }
      context.restore();
    });
  }

  const index = (event) => {
    const [u, v] = latentMap.place(chart, event);
    return { strip: Math.min(Math.floor(v * shown.length), shown.length - 1), t: Math.round(u * (steps - 1)) };
  };
  chart.style.height = `${Math.max(200, 90 * shown.length)}px`;
  chart.addEventListener("pointerdown", (event) => { if (event.isTrusted) chart.setPointerCapture(event.pointerId); last = index(event); });
  chart.addEventListener("pointermove", (event) => {
    if (!(event.buttons & 1) || last === null) return;
    const now = index(event).t;
    for (let t = Math.min(last.t, now); t <= Math.max(last.t, now); t++) state.hidden[t * stride + shown[last.strip]] = 1;
    changed();
  });
  const redraw = () => { if (state.sample) draw(); };
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  $("lines").hidden = false;
  return { draw, take() {}, size };
}
