"use strict";
// One datum: picked or dropped in, shown with its reconstruction, hidden in part and completed.
function startDatum(about, map) {
  const { clamp, fit, css } = latentMap, kind = about.view.kind, image = kind === "image";
  const [channels, height, width] = image ? about.shape : [1, 1, 1];
  const size = about.shape.reduce((n, side) => n * side, 1);
  const state = { datum: null, first: null, hidden: new Uint8Array(image ? height * width : size), values: null, seed: 0, file: null, found: null };
  const rows = [];

  // What the server is sent: the values, null where hidden.
  const visible = () => state.values.map((value, i) => state.hidden[image ? i % (height * width) : i] ? null : value);
  const anyHidden = () => state.hidden.some(Boolean) || state.values.some((value) => value === null);

  function picked(found) {
    $("split").value = found.split;
    $("index").value = found.index;
    setFile(null);
    take(found, `row ${found.row}${found.label === null ? "" : `, labelled ${found.label}`}`, `${found.split} ${found.index}`);
  }
  const pick = latest((split, index) => { say(); return ask("item", { split, index }); }, picked);
  const find = latest((row) => { say(); return ask("find", { row }); }, picked);
  const send = latest((file, row) => {
    say();
    if (file.size > 8 * 2 ** 20) throw new Error(`${file.name}: ${(file.size / 2 ** 20).toFixed(1)} MB, at most 8 are taken.`);
    return ask(`upload?row=${row}`, file);
  }, (found, file) => {
    setFile(file, found.row, found.n);
    take(found, file.name, [found.n > 1 ? `row ${found.row + 1} of ${found.n}` : "", found.note].filter(Boolean).join("; "));
  });
  const look = latest((values) => { say(); return ask("look", { values }); }, (found) => {
    state.datum = found;
    showDatum(found);
  });
  const complete = latest((values, seed) => { say(); return ask("complete", { values, seed }); }, (found) => {
    if (!anyHidden()) return;
    state.found = found;
    showCompletions(found);
  });
  map.pick = pick;

  function setFile(file, row = 0, n = 1) {
    state.file = file && { file, row, n };
    $("rows").hidden = n < 2;
    $("row").textContent = `row ${row + 1} of ${n}`;
    if (!file) $("file").value = "";
  }

  function take(found, title, note) {
    state.datum = state.first = found;
    state.values = found.values;
    state.hidden.fill(0);
    $("looked").hidden = false;
    $("title").textContent = title;  // a file's name is text, never markup
    $("note").textContent = note;
    if (kind === "bars") rows.forEach(([, input], i) => { input.value = state.values[i] === null ? "" : String(Number(state.values[i].toPrecision(6))); });
    clearCompletions();
    showDatum(found);
    if (anyHidden()) complete(visible(), state.seed);
  }

  function showDatum(found) {
    const { p, verdict, words, score } = found.unusual;
    $("p").textContent = p === null ? "–" : `p = ${p}`;
    $("verdict").textContent = verdict;
    document.querySelector(".verdict").dataset.rare = verdict.endsWith("unusual") && !verdict.startsWith("a little");
    $("words").textContent = words + (score === null ? "" : ` Score ${score}.`);
    map.show(found);
    const times = found.covariance ? map.magnified(found.covariance) : 1;
    const code = found.code.slice(0, 8).map((z, k) => `z${k + 1} = ${readable(z)}${found.code_deviation ? ` ± ${readable(found.code_deviation[k], 2)}` : ""}`);
    $("code").textContent = `Code: ${code.join(", ")}${found.code.length > 8 ? ", …" : ""}. `
      + (found.covariance ? `The ellipses on the map are the covariance of sampled codes around their mean, at one and two standard deviations${times > 1 ? `, drawn ${times} times larger than they are` : ""}; the dot is the mean network's code.` : "This method has one code per datum: there is no ellipse.");
    if (image) {
      paint($("reconstruction"), found.mean);
      for (const name of ["width", "blame"]) {
        paint($(name), found[name], map.colours);
        $(`${name}-top`).textContent = name === "blame" ? `${readable(100 * found.blame.top, 2)} %` : readable(found.width.top, 3);
      }
      drawInput();
    } else if (kind === "bars") showRows();
    else drawChart();
  }

  function drawInput() {
    const canvas = $("input"), plane = height * width;
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

  function showRows() {
    const at = (f, value) => 100 * clamp((value - f.low) / Math.max(f.high - f.low, 1e-12));
    rows.forEach(([row, input, track, text, share], i) => {
      const feature = about.named[i], given = visible()[i], guess = given === null && state.found;
      const { mean, low, high } = guess ? state.found : state.datum, m = mean[i];
      const [band, bar, dot] = track.children, from = at(feature, low[i]), to = at(feature, high[i]);
      band.style.left = `${from}%`;
      band.style.width = `${Math.max(to - from, 0.5)}%`;
      bar.style.left = `${at(feature, m)}%`;
      dot.hidden = given === null;
      dot.style.left = `${at(feature, given)}%`;
      track.querySelectorAll("s").forEach((mark) => mark.remove());
      if (guess) for (const sample of state.found.samples) {
        const mark = document.createElement("s");
        mark.style.left = `${at(feature, sample[i])}%`;
        track.append(mark);
      }
      const scale = feature.high - feature.low;
      text.textContent = `${readable(low[i], 3, scale)} to ${readable(high[i], 3, scale)}${guess ? " (filled in)" : ""}`;
      row.classList.toggle("surprising", given !== null && (given < low[i] || given > high[i]));
      share.textContent = state.datum.blame[i] >= 0.005 ? `${Math.round(100 * state.datum.blame[i])} %` : "";
      share.style.setProperty("--share", `${Math.round(100 * state.datum.blame[i])}%`);
      input.placeholder = guess ? `${readable(m, 3, scale)} ?` : "empty";
    });
  }

  function makeRows() {
    about.named.forEach((feature, i) => {
      const row = document.createElement("div");
      row.className = "feature";
      row.innerHTML = '<span class="name"></span><input type="text" inputmode="decimal" placeholder="empty"><span class="track"><i></i><b></b><u></u></span><span class="value"></span><span class="blame"></span>';
      const [name, input, track, text, share] = row.children;
      name.textContent = name.title = feature.name;
      input.setAttribute("aria-label", feature.name);
      input.addEventListener("input", () => {
        const given = input.value.trim().replace(",", "."), value = given === "" ? null : Number(given);
        input.setAttribute("aria-invalid", String(!(value === null || Number.isFinite(value))));
        if (!(value === null || Number.isFinite(value))) return say(`${feature.name}: expected a number, or nothing.`);
        state.values = state.values.slice();
        state.values[i] = value;
        state.hidden[i] = 0;
        changed();
      });
      $("table").append(row);
      rows.push([row, input, track, text, share]);
    });
  }

  // One strip per channel of a window (T, channels), on a scale of its own; one strip for other arrays.
  const shown = about.view.channels.length ? about.view.channels : [0], stride = about.view.channels.length ? about.shape[1] : 1;
  const steps = size / stride, of = (values, channel) => Array.from({ length: steps }, (_, t) => values[t * stride + channel]);
  function drawChart() {
    const [context, w, h] = fit($("chart")), seen = visible(), tall = h / shown.length;
    const { mean, low: lower, high: upper, blame } = state.datum, most = Math.max(...blame);
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
        context.fillText(`channel ${channel}`, 6, s * tall + 13);
        context.fillStyle = css("--line"); context.fillRect(0, s * tall, w, 1);
      }
      context.restore();
    });
  }

  function showCompletions(found) {
    map.complete(found.at);
    $("others").disabled = false;
    if (!image) { $("completed").hidden = true; return kind === "bars" ? showRows() : drawChart(); }
    $("completed").hidden = false;
    const box = $("completions");
    if (box.children.length !== found.samples.length + 2) {
      box.replaceChildren();
      for (let i = 0; i < found.samples.length + 2; i++) {
        const figure = document.createElement("figure"), caption = document.createElement("figcaption");
        caption.textContent = i === 0 ? "mean" : i === 1 ? "deviation" : String(i - 1);
        figure.append(document.createElement("canvas"), caption);
        box.append(figure);
      }
    }
    [found.mean, found.deviation, ...found.samples].forEach((picture, i) =>
      paint(box.children[i].firstChild, picture, i === 1 ? map.colours : null));
    $("sure").textContent = found.deviation.top ? ` The brightest deviation between them is ${readable(found.deviation.top)}; pixels run from 0 to 1.` : " They all agree.";
    document.body.dataset.completions = Number(document.body.dataset.completions || 0) + 1;
  }

  function clearCompletions() {
    state.found = null;
    $("completed").hidden = true;
    $("others").disabled = true;
    map.complete([]);
  }

  // After values were edited or hidden: the datum as it is now, and what may stand in its gaps.
  function changed() {
    const given = visible();
    if (image) drawInput();
    if (kind === "bars") look(given);
    if (anyHidden()) complete(given, state.seed);
    else { clearCompletions(); if (kind === "lines") drawChart(); }
  }

  const plane = $("input");
  let last = null;
  function brush(event) {
    const [u, v] = latentMap.place(plane, event), x = u * width, y = v * height;
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
  plane.addEventListener("pointerdown", (event) => { if (event.isTrusted) plane.setPointerCapture(event.pointerId); last = null; brush(event); });
  plane.addEventListener("pointermove", (event) => { if (event.buttons & 1) brush(event); });
  const chart = $("chart");
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

  $("upper").addEventListener("click", () => {
    state.hidden.fill(0).fill(1, 0, Math.floor(state.hidden.length / 2));
    if (kind === "bars") rows.slice(0, Math.floor(size / 2)).forEach(([, input]) => { input.value = ""; });
    changed();
  });
  $("restore").addEventListener("click", () => take(state.first, $("title").textContent, $("note").textContent));
  $("others").addEventListener("click", () => { state.seed = (state.seed + 1) % 1000; complete(visible(), state.seed); });

  for (const [name, n] of Object.entries(about.splits)) $("split").append(new Option(`${name} (${n})`, name));
  const names = Object.keys(about.splits);
  const chosen = (step) => {
    const n = about.splits[$("split").value];
    pick($("split").value, ((Math.round(Number($("index").value) || 0) + step) % n + n) % n);
  };
  $("picker").hidden = !names.length;
  $("split").addEventListener("change", () => chosen(0));
  $("index").addEventListener("change", () => chosen(0));
  $("previous").addEventListener("click", () => chosen(-1));
  $("next").addEventListener("click", () => chosen(1));
  $("random").addEventListener("click", () => pick($("split").value, Math.floor(Math.random() * about.splits[$("split").value])));
  $("search").addEventListener("change", () => {
    const row = Number($("search").value.trim());
    if ($("search").value.trim() === "") return;
    if (Number.isInteger(row) && row >= 0) find(row); else say("Expected the number of a row, from 0.");
  });
  $("row-previous").addEventListener("click", () => send(state.file.file, (state.file.row + state.file.n - 1) % state.file.n));
  $("row-next").addEventListener("click", () => send(state.file.file, (state.file.row + 1) % state.file.n));
  $("file").addEventListener("change", () => { if ($("file").files[0]) send($("file").files[0], 0); });
  $("drop-text").textContent = `${names.length ? "or drop" : "Drop"} ${image ? "an image or a .npy array" : kind === "bars" ? "a row as .csv, or a .npy array" : "a .npy array"} here`;
  $("drop").addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); $("file").click(); } });
  addEventListener("dragover", (event) => { event.preventDefault(); $("drop").classList.add("over"); });
  addEventListener("dragleave", () => $("drop").classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").classList.remove("over");
    if (event.dataTransfer.files[0]) send(event.dataTransfer.files[0], 0);
  });
  $("upper").textContent = image ? "hide upper half" : "hide first half";
  $("pictures").hidden = $("brush-choice").hidden = !image;
  $("table").hidden = $("table-key").hidden = kind !== "bars";
  $("lines").hidden = kind !== "lines";
  if (kind === "bars") makeRows();
  const redraw = () => { if (state.datum && kind === "lines") drawChart(); };
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // An address may name a datum: #test/12
  function named() {
    const [, part, number] = /^#(\w+)\/(\d+)$/.exec(location.hash) || [], known = part in about.splits && Number(number) < about.splits[part];
    if (known) pick(part, Number(number));
    return known;
  }
  addEventListener("hashchange", named);
  if (!named() && names.length) pick(about.splits.test ? "test" : names[names.length - 1], 0);
}
