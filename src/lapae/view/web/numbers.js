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
