// Exact speeds for i.i.d. acceptance and constant times, live: the renewal sums of theory.py in closed form.
"use strict";

const explorer = (() => {
  const POLICIES = ["ar", "sd", "pearl", "pearl-no-pre", "pearl-no-post"];

  /** 1 + a + ... + a^(n-1). */
  const geometric = (a, n) => (a === 1 ? n : (1 - a ** n) / (1 - a));

  /** Tokens per unit of time over a long text: tokens over time of one cycle, from fresh chain to fresh chain. */
  function speed(policy, { alpha, gamma, tDraft, tTarget, sync }) {
    const drafting = gamma * tDraft;
    const together = Math.max(drafting, tTarget) + sync;
    const last = alpha ** gamma;
    if (policy === "ar") return 1 / tTarget;
    if (policy === "sd") return geometric(alpha, gamma + 1) / (drafting + tTarget + sync);
    // Rounds at 0, gamma, 2 gamma, ... down the chain: 1 / (1 - alpha^gamma) of them.
    if (policy === "pearl-no-pre") return geometric(alpha, gamma) / ((1 - last) * drafting + together);
    // With one draft token, pre-verify leaves nothing pending: one round a token.
    if (gamma === 1) return 1 / together;
    if (policy === "pearl-no-post") return geometric(alpha, gamma + 1) / (together + alpha * (tTarget + sync));
    // 1 / (1 - alpha) tokens over 1 + alpha / (1 - alpha^gamma) rounds, both times 1 - alpha^gamma.
    return geometric(alpha, gamma) / (1 - last + alpha) / together;
  }

  /** Every policy at every gamma up to `most`: rows of the chart. */
  function curves(at, most) {
    const rows = [];
    for (const policy of POLICIES) {
      for (let gamma = 1; gamma <= most; gamma += 1) {
        rows.push({ policy, gamma, speedup: speed(policy, { ...at, gamma }) * at.tTarget });
      }
    }
    return rows;
  }

  /** The best gamma of each policy, the smallest of equals, and the speed-up there. */
  function best(rows) {
    const found = {};
    for (const row of rows) {
      const top = found[row.policy];
      if (!top || row.speedup > top.speedup * (1 + 1e-12)) found[row.policy] = row;
    }
    return found;
  }

  /** Follow the sliders; return what redraws curves and table.  `view` returns the chart as it now stands. */
  function start(form, table, view) {
    const inputs = [...form.querySelectorAll("input")];
    const most = Number(form.dataset.most);
    const value = (input) => (input.dataset.scale === "log" ? 10 ** Number(input.value) : Number(input.value));
    const shown = (input, x) =>
      input.dataset.unit ? `${Number(x.toPrecision(3))} ${input.dataset.unit}` : String(Number(x.toPrecision(3)));
    function update() {
      const at = {};
      for (const input of inputs) {
        at[input.name] = value(input);
        const text = shown(input, at[input.name]);
        input.setAttribute("aria-valuetext", text);
        form.querySelector(`output[for="${input.id}"]`).textContent = text;
      }
      const rows = curves(at, most);
      const tops = best(rows);
      const winner = Object.values(tops).reduce((a, b) => (b.speedup > a.speedup * (1 + 1e-12) ? b : a));
      view().data("explored", rows).data("chosen", [{ gamma: at.gamma }]).run();
      table.replaceChildren(
        ...POLICIES.map((policy) => {
          const row = document.createElement("tr");
          const plain = policy === "ar";
          const cells = [
            policy + (policy === winner.policy ? " (fastest)" : ""),
            (speed(policy, at) * at.tTarget).toFixed(2),
            (speed(policy, at) * 1000).toPrecision(4),
            plain ? "-" : tops[policy].gamma,
            tops[policy].speedup.toFixed(2),
          ];
          cells.forEach((text) => (row.insertCell().textContent = text));
          return row;
        }),
      );
    }
    form.addEventListener("input", update);
    return update;
  }

  return { speed, curves, best, start };
})();
