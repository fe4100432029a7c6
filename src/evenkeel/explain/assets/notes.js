// What is special about an input: non-finite values, overflow, constant groups, single elements. Python's words.
(function () {
  "use strict";
  const { general, commas } = window.evenkeel;
  const { coordinates } = window.evenkeel.arithmetic;
  const NAMED = 4;
  const short = (value) => general(value).replace("e-0", "e-").replace("e+0", "e+");
  const isMoments = (p) => !["rms", "minmax", "image", "dyt"].includes(p.norm);

  function places(numbers, kind) {
    const more = numbers.length > NAMED ? ` and ${commas(numbers.length - NAMED)} more` : "";
    return `${kind}${numbers.length > 1 ? "s" : ""} ${numbers.slice(0, NAMED).join(", ")}${more}`;
  }

  function spoiled(p, kind, hit) {
    if (p.norm === "dyt" || p.givenMean) return "only these elements are affected, since no statistic is computed from them";
    const others = p.count === 1 ? "" : `; ${commas(p.count - hit)} of ${commas(p.count)} groups do not share with it and stay as they are`;
    if (kind === "NaN") return `every statistic it enters becomes NaN, and with it every element of the group${others}`;
    if (p.norm === "rms") return `the mean square is infinite: finite elements of the group become 0 and this one inf/inf = NaN${others}`;
    if (p.norm === "minmax") return `the range is infinite: finite elements become 0 or NaN${others}`;
    return `the mean is infinite and inf - inf is not a number: variance and every element of the group become NaN${others}`;
  }

  function nonFinite(p) {
    const found = [];
    for (const [kind, odd] of [["NaN", Number.isNaN], ["inf", (value) => Math.abs(value) === Infinity]]) {
      const where = p.x.flatMap((value, i) => (odd(value) ? [i] : []));
      if (!where.length) continue;
      const spots = where.slice(0, NAMED).map((i) => `[${coordinates(i, p.shape).join(", ")}]`).join(", ");
      const more = where.length > NAMED ? ` and ${commas(where.length - NAMED)} more` : "";
      const hit = new Set(where.map((i) => p.groups[i]).filter((g) => g >= 0));
      found.push(`${kind} at ${spots}${more}: ${hit.size ? spoiled(p, kind, hit.size) : "the mask leaves it out, so it has no effect"}.`);
    }
    return found;
  }

  function describeConstant(p, v, constant) {
    const some = constant.filter((g) => p.n[g] > 1);
    if (!some.length) {
      const whose = p.count === 1 ? "The group has" : constant.length === p.count ? "Each group has" : "Some groups have";
      return isMoments(p)
        ? `${whose} a single element, which is its own mean: the normalized value is 0 whatever the input (torch and evenkeel refuse this for Batch- and InstanceNorm in training).`
        : `${whose} a single element: it is both minimum and maximum, and becomes the low end.`;
    }
    const subject = p.count === 1 ? "The group is constant" : `${places(some, "group")}: constant`;
    if (p.norm === "minmax" || p.norm === "standardize") return `${subject}: there is no spread to divide by, so it is divided by 1 and becomes the low end or 0.`;
    const d = v.denominator[some[0]];
    if (d === 0) return `${subject}, and ε is 0: 0/0 is not a number. Any ε above 0 gives 0.`;
    return `${subject}: the deviation is 0 and ε = ${short(p.eps)} alone makes the divisor ${general(d)}. ` +
      `The result is 0, but a difference as small as ${general(d, 2)} in one element would already show.`;
  }

  function notes(p, v) {
    const found = nonFinite(p);
    const groups = p.members.map((_, g) => g);
    const finite = groups.filter((g) => p.n[g] && p.members[g].every((i) => Number.isFinite(p.x[i])));
    const overflow = v.denominator ? finite.filter((g) => !Number.isFinite(v.denominator[g])) : [];
    if (overflow.length && !p.givenMean) found.push(`${places(overflow, "group")}: its sums overflow float64, so its statistics are infinite or not a number, and its result means nothing; scale the numbers down.`);
    const constant = finite.filter((g) => !overflow.includes(g) && p.members[g].every((i) => p.x[i] === p.x[p.members[g][0]]));
    if ((isMoments(p) || p.norm === "minmax") && !p.givenMean && constant.length) found.push(describeConstant(p, v, constant));
    if (v.mean_square && v.mean_square.includes(0)) found.push(`A group holds zeros only: its rms is 0, and with ε = ${short(p.eps)} it becomes ${p.eps === 0 ? "0/0, not a number" : "0"}.`);
    const largest = p.x.reduce((most, value) => (Number.isNaN(value) ? most : Math.max(most, Math.abs(value))), 0);
    if (p.norm === "image" && largest <= 1 && p.unitScale > 1) found.push(`All values lie between -1 and 1: this image seems to be scaled already, and is divided by ${general(p.unitScale)} again here; pass scale=1 if so.`);
    const empty = groups.filter((g) => p.n[g] === 0);
    if (empty.length) found.push(`${places(empty, "group")} without any valid element: mean 0, variance 1, output 0.`);
    return found;
  }

  window.evenkeel.notes = notes;
})();
