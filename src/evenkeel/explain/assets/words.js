// How each step is told: title, formula, the formula with numbers, meaning; the same words as the terminal's.
(function () {
  "use strict";
  const { tex, texList, general, commas } = window.evenkeel;
  const short = (value) => general(value).replace("e-0", "e-").replace("e+0", "e+");
  const R = String.raw;
  const moments = (c) => !["rms", "minmax", "image", "dyt"].includes(c.p.norm);
  const hasEps = (c) => c.p.norm !== "standardize" && (moments(c) || c.p.norm === "rms");
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const deviation = (values) => { const m = mean(values); return Math.sqrt(mean(values.map((a) => (a - m) ** 2))); };

  function describeInput(c) {
    const { p } = c;
    const masked = p.groups.filter((g) => g < 0).length;
    const left = masked ? ` The mask leaves out ${commas(masked)} of them: they count nowhere and become 0.` : "";
    return `${commas(p.x.length)} numbers of shape ${p.shape.join(" × ")}, as ${p.dtype} holds them.${left}`;
  }

  const ROW = "all elements of one row (one token, one example) along the shared axes; other rows do not matter";
  const COLUMN = "one feature (column) over all rows of the data";
  const SHARES = {
    layer: ROW, rms: ROW,
    batch: "all elements of one channel, over the batch and every position: examples depend on each other",
    instance: "the positions of one channel of one sample",
    group: "the channels of one group of one sample, with all their positions",
    standardize: COLUMN, minmax: COLUMN,
    image: "one colour channel: its mean and deviation are constants, computed once on a whole data set",
    dyt: "nothing: each element stands alone",
  };
  const RESULTS = {
    layer: "It is affine per row: the row keeps the shape of its distribution, and no value exceeds √(n − 1) before the weight. Nothing is squeezed between 0 and 1.",
    rms: "The mean is kept: a weight of 1 + γ (called zero-centred) centres the weight, never the values.",
    batch: "In inference the remembered mean and variance take the place of these, so a batch of one works; the trouble is the difference between the two. γ = √(σ² + ε) with β = μ undoes it; γ = 0 leaves the constant β.",
    instance: "Each channel of each sample loses its own brightness and contrast; samples do not depend on each other.",
    group: "One group is LayerNorm over channels and positions; as many groups as channels is InstanceNorm.",
    standardize: "Compute mean and deviation once, on the training data, and use the same two for every later row. A constant column is divided by 1.",
    minmax: "The least value lands on the low end and the largest on the high end: one outlier squeezes the rest.",
    image: "The ImageNet deviation 0.229 is a mean of per-image deviations; the pooled one is about 0.28, so normalized ImageNet has a deviation near 1.25, not 1.",
    dyt: "No statistic is computed; values far from 0 saturate at ±γ + β, values near it pass almost linearly.",
  };

  function describeGroups(c) {
    const shown = c.groups > 1 ? ` The formulas show group ${c.g} (counted from 0).` : "";
    return `Statistics are shared by ${SHARES[c.p.norm]}. ${commas(c.groups)} group${c.groups > 1 ? "s" : ""}.${shown}`;
  }

  const CONSTANT = "A remembered constant, not computed from these numbers.";
  function describeVariance(c) {
    if (c.given) return CONSTANT;
    if (c.value("variance") === 0) return "Every element of the group is the same: there is no spread, and ε (if any) decides the result.";
    return "The mean squared distance from the mean, divided by n: what every norm layer uses.";
  }

  function describeStd(c) {
    if (c.given) return "A remembered constant, computed on a data set.";
    const distance = c.n ? mean(c.of("centred").map(Math.abs)) : NaN;
    return `The root of the mean squared distance, not the mean distance, which is ${general(distance)} here.`;
  }

  function describeSampleStd(c) {
    const [sample, population] = [c.value("sample_std"), c.value("std")];
    if (Number.isNaN(sample)) return "Not defined here: it needs at least two elements and statistics of these numbers.";
    const used = c.p.correction ? "This one is used here." : "The norm uses the population one.";
    return `Population ${general(population)}, sample ${general(sample)}: a factor of ${general(population ? sample / population : 1)}. ${used}`;
  }

  function square(c) {
    if (c.p.norm === "rms") return ["q", "mean_square", R`\mathrm{rms}`];
    return c.p.correction ? ["s^2", "sample_variance", "s"] : [R`\sigma^2`, "variance", R`\sigma`];
  }

  function denominatorFormula(c) {
    if (c.p.norm === "minmax") return R`d = \max - \min`;
    if (c.p.norm === "image") return R`d = \sigma`;
    const [symbol, , root] = square(c);
    if (!hasEps(c)) return `d = ${root}`;
    return { inside: R`d = \sqrt{${symbol} + \epsilon}`, outside: R`d = ${root} + \epsilon`, clamp: R`d = \max(${root}, \epsilon)` }[c.p.mode];
  }

  function denominatorNumbers(c) {
    const result = c.num("denominator");
    if (!hasEps(c)) return `d = ${result}`;
    const [, step] = square(c);
    const [root, eps] = [tex(Math.sqrt(c.value(step))), tex(c.p.eps)];
    return { inside: R`d = \sqrt{${c.num(step)} + ${eps}} = ${result}`, outside: R`d = ${root} + ${eps} = ${result}`, clamp: R`d = \max(${root}, ${eps}) = ${result}` }[c.p.mode];
  }

  const ENTERS = {
    inside: "added to the square, under the root: torch, BatchNorm, most language models",
    outside: "added to the root: the code of RMSNorm's authors and several texts",
    clamp: "a floor under the root: the style of F.normalize",
  };
  function describeDenominator(c) {
    if (c.value("denominator") === 0) return "The divisor is 0: the result is 0/0, not a number. An ε above 0 prevents that.";
    if (hasEps(c)) return `ε = ${short(c.p.eps)} is ${ENTERS[c.p.mode]}. It keeps the division finite.`;
    const zero = c.value(c.p.norm === "minmax" ? "range" : "std") === 0;
    return (zero ? "The group is constant: it is divided by 1, so that it becomes 0 rather than noise. " : "") + "What every difference is divided by.";
  }

  function describeEps(c) {
    const effect = c.value("eps_effect");
    if (Number.isNaN(effect)) return "Without ε and without spread there is nothing to compare.";
    if (effect === 100) return "The group has no spread: ε alone decides the divisor, and the result is 0 whatever its size.";
    if (effect >= 1) return `ε shrinks the result by ${general(effect, 3)} %: it is not small against the spread: where it enters matters.`;
    return `ε shrinks the result by ${general(effect, 3)} % against no ε at all.`;
  }

  const NUMERATORS = { rms: ["x", "input"], minmax: [R`x - \min`, "input"] };
  const numerator = (c) => NUMERATORS[c.p.norm] || ["c", "centred"];

  function normalizedNumbers(c) {
    if (c.p.norm === "dyt") return R`\hat{x} = \tanh(${c.vec("stretched")}) = ${c.vec("normalized")}`;
    const top = c.vec(numerator(c)[1]) + (c.p.norm === "minmax" ? ` - ${c.signed("minimum")}` : "");
    return R`\hat{x} = \frac{${top}}{${c.num("denominator")}} = ${c.vec("normalized")}`;
  }

  function describeNormalized(c) {
    const values = c.of("normalized");
    if (!c.n || !values.every(Number.isFinite)) return "Not finite: see the notes on what the non-finite inputs, or the missing spread, do.";
    if (c.p.norm === "minmax") return "0 for the least value, 1 for the largest.";
    if (c.p.norm === "dyt") return `Between -1 and 1; the largest magnitude here is ${general(Math.max(...values.map(Math.abs)))}.`;
    const centre = mean(values);
    if (c.p.norm === "rms") return `Root mean square ${general(Math.sqrt(mean(values.map((a) => a * a))))}; the mean is ${general(centre)}, not removed.`;
    if (c.given) return `With given statistics: mean ${general(centre)}, deviation ${general(deviation(values))}, not 0 and 1 in general.`;
    return `Mean ${general(centre, 2)}, deviation ${general(deviation(values))}. No magnitude can exceed √(n − 1) = ${general(Math.sqrt(Math.max(0, c.n - 1)))}.`;
  }

  const scaledFormula = (c) => c.p.norm === "minmax" ? R`w = \hat{x} (b - a)` : c.p.offset ? R`w = \hat{x} (${tex(c.p.offset)} + \gamma)` : R`w = \hat{x} \gamma`;
  const scaledNumbers = (c) => R`w = ${c.vec("normalized")} \cdot ${c.p.norm === "minmax" ? tex(c.p.high - c.p.low) : c.gamma()} = ${c.vec("scaled")}`;
  const outputFormula = (c) => `y = ${c.v.scaled ? "w" : R`\hat{x}`}${c.p.bias ? R` + \beta` : c.p.norm === "minmax" ? " + a" : ""}`;
  function outputNumbers(c) {
    const start = c.vec(c.v.scaled ? "scaled" : "normalized");
    if (c.p.bias) return `y = ${start} + ${c.beta()} = ${c.vec("output")}`;
    if (c.p.norm === "minmax") return `y = ${start} + ${tex(c.p.low)} = ${c.vec("output")}`;
    return `y = ${c.vec("output")}`;
  }
  function describeOutput(c) {
    const plain = !c.p.weight && !c.p.bias && c.p.parameters;
    return (plain ? "Without weight and bias (γ' = 1, β = 0, as at the start of training) only this last part is the identity. " : "") + RESULTS[c.p.norm];
  }

  const factor = (c) => c.p.norm === "standardize" || c.p.mode === "inside" ? (c.p.correction ? c.n / Math.max(c.n - 1, 1) : 1)
    : c.p.mode === "outside" ? (c.p.square[c.g] ? c.value("denominator") / Math.sqrt(c.p.square[c.g]) : 0)
    : Number(c.p.square[c.g] > 0 && Math.sqrt(c.p.square[c.g]) >= c.p.eps);
  function projectedFormula(c) {
    const k = c.p.mode === "inside" && !c.p.correction ? "" : "k ";
    return c.p.norm === "rms" ? R`p = \hat{g} - \hat{x} \, ${k}b` : R`p = \hat{g} - a - \hat{x} \, ${k}b`;
  }
  function projectedNumbers(c) {
    const a = c.p.norm === "rms" ? "" : ` - ${c.signed("mean_g")}`;
    const k = tex(factor(c));
    return R`p = ${c.vec("g_hat")}${a} - ${c.vec("normalized")} \cdot ${k === "1" ? "" : R`${k} \cdot `}${c.signed("mean_g_xhat")} = ${c.vec("projected")}`;
  }
  function describeKept(c) {
    const [along, kept] = [general(c.value("share_xhat"), 4), general(c.value("share_kept"), 4)];
    if (c.p.norm === "rms") return `Of the squared length of ĝ: ${along} % along x̂, ${kept} % remain.`;
    return `Of the squared length of ĝ: ${general(c.value("share_one"), 4)} % along 1, ${along} % along x̂, ${kept} % remain. The directions are perpendicular: the shares add up.`;
  }
  const DX = R`\frac{\partial L}{\partial x}`;
  function dxFormula(c) {
    if (c.p.norm === "dyt") return R`${DX} = \hat{g} \, (1 - \hat{x}^2) \, \alpha`;
    if (c.p.norm === "minmax") return R`${DX} = \frac{\hat{g}}{d} \; (\text{less the sums at the two ends})`;
    if (c.p.norm === "image") return R`${DX} = \frac{\hat{g}}{d \cdot \mathrm{scale}}`;
    return R`${DX} = \frac{${c.given ? R`\hat{g}` : "p"}}{d}`;
  }
  const dxNumbers = (c) => c.v.projected ? R`${DX} = \frac{${c.vec("projected")}}{${c.num("denominator")}} = ${c.vec("dx")}` : `${DX} = ${c.vec("dx")}`;
  function describeDx(c) {
    if (c.p.norm === "dyt") return "Saturated elements get almost no gradient: the slope of tanh is near 0 there.";
    if (c.p.norm === "minmax") return "Only the elements at the two ends feel the others; where several share an end, the first one does.";
    if (c.given) return "With constant statistics each element's gradient is scaled and nothing is removed.";
    return "What the layer below receives. A larger input has a larger divisor, so its gradient is smaller.";
  }
  const parameter = (name, title, symbol, rest) => [
    title, R`\frac{\partial L}{\partial ${symbol}} = ${rest}`, (c) => R`\frac{\partial L}{\partial ${symbol}} = ${texList(c.v[name])}`,
    "Summed over every element that the parameter touches, in every group.",
  ];
  const column = (c, at) => texList(c.v.finite_difference.map((row) => row[at]));

  window.evenkeel.words = {
    input: ["The input", "x", (c) => `x = ${c.vec("input")}`, describeInput],
    groups: ["Who shares statistics", R`n = \text{elements that share}`, (c) => `n = ${c.n}`, describeGroups],
    unit: ["To the range 0 to 1", R`u = \frac{x}{\mathrm{scale}}`, (c) => R`u = \frac{${c.vec("input")}}{${tex(c.p.unitScale)}} = ${c.vec("unit")}`,
      "The constants belong to colours between 0 and 1; scaling twice or not at all is the usual mistake."],
    mean: ["Mean", (c) => (c.given ? R`\mu` : R`\mu = \frac{1}{n} \sum_i x_i`),
      (c) => (c.given ? R`\mu = ${c.num("mean")}` : R`\mu = \frac{${c.sum("input")}}{${c.n}} = ${c.num("mean")}`),
      (c) => (c.given ? CONSTANT : "The balance point of the group: the differences from it add up to 0.")],
    centred: ["Subtract the mean", (c) => (c.p.norm === "image" ? R`c = u - \mu` : R`c = x - \mu`),
      (c) => `c = ${c.vec(c.p.norm === "image" ? "unit" : "input")} - ${c.signed("mean")} = ${c.vec("centred")}`,
      "Every element's distance from the mean, with its sign."],
    variance: ["Variance", (c) => (c.given ? R`\sigma^2` : R`\sigma^2 = \frac{1}{n} \sum_i c_i^2`),
      (c) => (c.given ? R`\sigma^2 = ${c.num("variance")}` : R`\sigma^2 = \frac{${c.squares("centred")}}{${c.n}} = ${c.num("variance")}`), describeVariance],
    sample_variance: ["Sample variance, for comparison", R`s^2 = \frac{1}{n - 1} \sum_i c_i^2`,
      (c) => (c.n > 1 && !c.given ? R`s^2 = \frac{${c.squares("centred")}}{${c.n} - 1} = ${c.num("sample_variance")}` : `s^2 = ${c.num("sample_variance")}`),
      "Divided by n - 1, it estimates the variance of what the numbers were drawn from, without bias."],
    std: ["Standard deviation", R`\sigma = \sqrt{\sigma^2}`,
      (c) => (c.v.variance ? R`\sigma = \sqrt{${c.num("variance")}} = ${c.num("std")}` : R`\sigma = ${c.num("std")}`), describeStd],
    sample_std: ["Population and sample deviation side by side", R`s = \sqrt{s^2}`, (c) => R`\sigma = ${c.num("std")}, \quad s = ${c.num("sample_std")}`, describeSampleStd],
    mean_square: ["Mean square", R`q = \frac{1}{n} \sum_i x_i^2`, (c) => R`q = \frac{${c.squares("input")}}{${c.n}} = ${c.num("mean_square")}`,
      "No mean is subtracted: the distance is taken from 0."],
    rms: ["Root mean square", R`\mathrm{rms} = \sqrt{q}`, (c) => R`\mathrm{rms} = \sqrt{${c.num("mean_square")}} = ${c.num("rms")}`,
      "The typical size of an element. It equals the deviation where the mean is 0."],
    minimum: ["Minimum", R`\min_i x_i`, (c) => R`\min = ${c.num("minimum")}`, "The least value."],
    maximum: ["Maximum", R`\max_i x_i`, (c) => R`\max = ${c.num("maximum")}`, "The largest value."],
    range: ["Range", R`\max - \min`, (c) => `${c.num("maximum")} - ${c.signed("minimum")} = ${c.num("range")}`, "Two values decide everything; a single outlier moves it."],
    denominator: ["The divisor", denominatorFormula, denominatorNumbers, describeDenominator],
    eps_effect: ["What ε changes, in percent", (c) => R`100 \left(1 - \frac{${square(c)[2]}}{d}\right)`, (c) => R`${c.num("eps_effect")}\,\%`, describeEps],
    stretched: ["Stretch", R`s = \alpha x`, (c) => R`s = ${tex(c.p.alpha)} \cdot ${c.vec("input")} = ${c.vec("stretched")}`, "α, one learned number, sets where the tanh begins to saturate."],
    normalized: ["Normalize", (c) => (c.p.norm === "dyt" ? R`\hat{x} = \tanh(s)` : R`\hat{x} = \frac{${numerator(c)[0]}}{d}`), normalizedNumbers, describeNormalized],
    scaled: ["Scale", scaledFormula, scaledNumbers, "The learned scale (or the width of the range asked for)."],
    output: ["The output", outputFormula, outputNumbers, describeOutput],
    upstream: ["Upstream gradient", "g", (c) => `g = ${c.vec("upstream")}`,
      (c) => (c.p.given ? "How the loss changes with each output, ∂L/∂y, as given."
        : "How the loss changes with each output: ∂L/∂y. None was given, so these are fixed pseudo-random numbers; any other gradient of yours can take their place.")],
    g_hat: ["Through the scale", (c) => (c.p.norm === "minmax" ? R`\hat{g} = g \, (b - a)` : R`\hat{g} = g \, \gamma'`), (c) => R`\hat{g} = ${c.vec("g_hat")}`,
      "The gradient at the normalized values, ∂L/∂x̂; γ' is the weight with its offset, 1 without one."],
    mean_g: ["Its component along 1", R`a = \frac{1}{n} \sum_i \hat{g}_i`, (c) => R`a = \frac{${c.sum("g_hat")}}{${c.n}} = ${c.num("mean_g")}`,
      "The part of the gradient that would move all elements alike."],
    mean_g_xhat: ["Its component along x̂", R`b = \frac{1}{n} \sum_i \hat{g}_i \hat{x}_i`, (c) => R`b = \frac{${c.products("g_hat", "normalized")}}{${c.n}} = ${c.num("mean_g_xhat")}`,
      "The part of the gradient that would stretch all elements in proportion."],
    share_one: ["Share along 1, in percent", R`100 \, \frac{n a^2}{\sum_i \hat{g}_i^2}`, (c) => R`${c.num("share_one")}\,\%`, "Of the squared length of ĝ: this part is removed."],
    share_xhat: ["Share along x̂, in percent", R`100 \, \frac{(n b)^2}{\sum_i \hat{x}_i^2 \sum_i \hat{g}_i^2}`, (c) => R`${c.num("share_xhat")}\,\%`,
      "Of the squared length of ĝ: this part is removed (all of it where ε is small against the spread)."],
    share_kept: ["Share that remains, in percent", R`100 - \text{removed}`, (c) => R`${c.num("share_kept")}\,\%`, describeKept],
    projected: ["Remove both directions", projectedFormula, projectedNumbers,
      (c) => (c.p.norm === "rms" ? "Growing all elements in proportion does not change the output, so the direction of x̂ is removed."
        : "Moving all elements alike, or stretching them, does not change the output (up to ε): both directions, 1 and x̂, are removed from the gradient.")],
    sum_at_max: ["What the maximum takes", R`\sum_i \hat{g}_i \hat{x}_i`, (c) => c.num("sum_at_max"), "Raising the maximum lowers every other value in proportion to where it lies."],
    sum_at_min: ["What the minimum takes", R`\sum_i \hat{g}_i (1 - \hat{x}_i)`, (c) => c.num("sum_at_min"), "Lowering the minimum raises every other value likewise."],
    slope: ["Slope of the tanh", R`1 - \hat{x}^2`, (c) => c.vec("slope"), "1 in the middle, near 0 where the tanh saturates."],
    dx: ["Gradient of the input", dxFormula, dxNumbers, describeDx],
    dalpha: parameter("dalpha", "Gradient of α", R`\alpha`, R`\sum \hat{g} \, (1 - \hat{x}^2) \, x`),
    dweight: parameter("dweight", "Gradient of the weight", R`\gamma`, R`\sum g \, \hat{x}`),
    dbias: parameter("dbias", "Gradient of the bias", R`\beta`, R`\sum g`),
    finite_difference: ["Checked by moving each input a little", R`\frac{L(x_i + h) - L(x_i - h)}{2 h}, \quad L = \sum_j g_j y_j`,
      (c) => R`${column(c, 2)} \approx ${column(c, 1)}`, "Each row has an element's number, its gradient from above, and the same from two forward passes."],
  };
})();
