"use strict";
// One sample: picked or dropped in, shown with its reconstruction, hidden in part and completed.
function startSample(about, map) {
  const image = about.view.kind === "image";
  const state = { sample: null, first: null, hidden: null, values: null, seed: 0, file: null, found: null };
  state.visible = () => state.values.map((value, i) => state.hidden[i % state.hidden.length] ? null : value);
  const shown = { image: asPicture, bars: asTable, lines: asLines }[about.view.kind](about, map, state, changed);
  state.hidden = new Uint8Array(shown.size);
  const anyHidden = () => state.hidden.some(Boolean) || state.values.some((value) => value === null);

  function picked(found) {
    $("split").value = found.split;
    $("index").value = found.index;
    setFile(null);
    take(found, `${found.id}${found.label === null ? "" : `, labelled ${found.label}`}`, `${found.split} ${found.index}`);
  }
  const pick = latest((split, index) => { say(); return ask("item", { split, index }); }, picked);
  const find = latest((id) => { say(); return ask("find", { id }); }, picked);
  const send = latest((file, row) => {
    say();
    if (file.size > 8 * 2 ** 20) throw new Error(`${file.name}: ${(file.size / 2 ** 20).toFixed(1)} MB: expected at most 8 MB.`);
    return ask(`upload?row=${row}`, file);
  }, (found, file) => {
    setFile(file, found.row, found.n);
    take(found, file.name, [found.n > 1 ? `row ${found.row + 1} of ${found.n}` : "", found.note].filter(Boolean).join("; "));
  });
  // An answer about a sample that is no longer selected is not shown.
  const look = latest((values) => { say(); return ask("look", { values }); }, (found, values, of) => {
    if (of !== state.first) return;
    state.sample = found;
    showSample(found);
  });
  const complete = latest((values, seed) => { say(); return ask("complete", { values, seed }); }, (found, values, seed, of) => {
    if (of !== state.first || !anyHidden()) return;
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
    state.sample = state.first = found;
    state.values = found.values;
    state.hidden.fill(0);
    $("looked").hidden = false;
    $("title").textContent = title;  // a file's name is text, never markup
    $("note").textContent = note;
    shown.take();
    clearCompletions();
    showSample(found);
    if (anyHidden()) complete(state.visible(), state.seed, state.first);
  }

  function showSample(found) {
    const { p, verdict, rare, words, score } = found.unusual;
    $("p").textContent = p === null ? "–" : `p = ${p}`;
    $("verdict").textContent = verdict;
    document.querySelector(".verdict").dataset.rare = rare;
    $("words").textContent = words + (score === null ? "" : ` Anomaly score ${score}.`);
    map.show(found);
    const times = found.covariance ? map.magnified(found.covariance) : 1;
    const code = found.code.slice(0, 8).map((z, k) => `z${k + 1} = ${readable(z)}${found.code_deviation ? ` ± ${readable(found.code_deviation[k], 2)}` : ""}`);
    $("code").textContent = `Embedding: ${code.join(", ")}${found.code.length > 8 ? ", …" : ""}. `
      + (found.covariance ? `The ellipses on the map are the covariance of sampled codes around their mean, at one and two standard deviations${times > 1 ? `, drawn ${times} times larger than they are` : ""}; the dot is the mean network's code.` : "This method has one embedding per sample: there is no ellipse.");
    shown.draw();
  }

  function showCompletions(found) {
    map.complete(found.at);
    $("others").disabled = false;
    if (!image) { $("completed").hidden = true; return shown.draw(); }
    $("completed").hidden = false;
    const box = $("completions");
    if (box.children.length !== found.samples.length + 2) {
      box.replaceChildren();
      for (let i = 0; i < found.samples.length + 2; i++) {
        const figure = document.createElement("figure"), caption = document.createElement("figcaption");
        caption.textContent = i === 0 ? "mean" : i === 1 ? "standard deviation" : String(i - 1);
        figure.append(document.createElement("canvas"), caption);
        box.append(figure);
      }
    }
    [found.mean, found.deviation, ...found.samples].forEach((picture, i) =>
      paint(box.children[i].firstChild, picture, i === 1 ? map.colours : null));
    $("sure").textContent = found.deviation.top ? ` The largest standard deviation between them is ${readable(found.deviation.top)}; pixels run from 0 to 1.` : " They all agree.";
    document.body.dataset.completions = Number(document.body.dataset.completions || 0) + 1;
  }

  function clearCompletions() {
    state.found = null;
    $("completed").hidden = true;
    $("others").disabled = true;
    map.complete([]);
  }

  // After values were edited or hidden: the sample as it is now, and what may stand in its gaps.
  function changed() {
    const given = state.visible();
    if (shown.looksAgain) look(given, state.first); else shown.draw();
    if (anyHidden()) complete(given, state.seed, state.first);
    else { clearCompletions(); shown.draw(); }
  }

  $("upper").addEventListener("click", () => {
    state.hidden.fill(0).fill(1, 0, Math.floor(state.hidden.length / 2));
    changed();
  });
  $("restore").addEventListener("click", () => take(state.first, $("title").textContent, $("note").textContent));
  $("others").addEventListener("click", () => { state.seed = (state.seed + 1) % 1000; complete(state.visible(), state.seed, state.first); });

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
  $("search").addEventListener("change", () => { if ($("search").value.trim()) find($("search").value); });
  $("row-previous").addEventListener("click", () => send(state.file.file, (state.file.row + state.file.n - 1) % state.file.n));
  $("row-next").addEventListener("click", () => send(state.file.file, (state.file.row + 1) % state.file.n));
  $("file").addEventListener("change", () => { if ($("file").files[0]) send($("file").files[0], 0); });
  $("drop-text").textContent = `${names.length ? "or drop" : "Drop"} ${image ? "an image or a .npy array" : about.view.kind === "bars" ? "a row as .csv, or a .npy array" : "a .npy array"} here`;
  $("drop").addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); $("file").click(); } });
  addEventListener("dragover", (event) => { event.preventDefault(); $("drop").classList.add("over"); });
  addEventListener("dragleave", () => $("drop").classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").classList.remove("over");
    if (event.dataTransfer.files[0]) send(event.dataTransfer.files[0], 0);
  });
  $("upper").textContent = image ? "hide upper half" : "hide first half";
  // An address may name a sample, and the run it is of: #test/12, #test/12/digits. Whether it names any.
  function named() {
    const [, part, number, of] = /^#(\w+)\/(\d+)(?:\/(.+))?$/.exec(location.hash) || [];
    if (!part) return false;
    let run = of || about.name;
    try { run = of ? decodeURIComponent(of) : run; } catch { /* a name that nobody has encoded */ }
    if (run !== about.name) say(`This link belongs to the run “${run}”, and this explorer shows “${about.name}”. Start lapae explore with that run.`);
    else if (Number(number) < about.splits[part]) pick(part, Number(number));
    else say(`There is no ${part} ${number} among these samples. This link belongs to other data: start lapae explore with those.`);
    return true;
  }
  addEventListener("hashchange", named);
  if (!named() && names.length) pick(about.splits.test ? "test" : names[names.length - 1], 0);
}
