"use strict";
// Numbers as people write them, as lapae/runs/numbers.py writes them: a test compares the two.
function readable(value, digits = 4, scale = 0) {
  const bare = (text) => { const t = text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text; return t === "-0" ? "0" : t; };
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  const unit = scale || Math.abs(value);
  if (Math.abs(value) <= 0.5 * unit * 10 ** (1 - digits)) return "0";
  if (unit < 1e-4 || Math.max(unit, Math.abs(value)) >= 1e9) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return `${bare(mantissa)}·10${[...String(Number(exponent))].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("")}`;
  }
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(unit)));
  const [whole, part] = value.toFixed(decimals).split(".");
  return bare(whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? `.${part}` : ""));
}

// A value of a feature as people read it: a number, one of its words, a date.
function told(feature, value, digits = 4) {
  if (value === null) return "missing";
  if (feature.kind === "word") return feature.words[Math.min(Math.max(Math.round(value), 0), feature.words.length - 1)];
  if (feature.kind === "date") return new Date(Math.round(value * 1440) * 60000).toISOString().slice(0, 16).replace("T00:00", "").replace("T", " ");
  return readable(value, digits, feature.high - feature.low);
}

// What was typed for a feature, as a number: NaN where it cannot be one, null where it is empty.
function meant(feature, text) {
  if (text === "") return null;
  if (feature.kind === "word") return feature.words.includes(text) ? feature.words.indexOf(text) : NaN;
  if (feature.kind === "date") return Date.parse(`${text.replace(" ", "T")}${text.length > 10 ? "Z" : ""}`) / 86400000;
  return Number(text.replace(",", "."));
}
