// What is special about an input: non-finite values, overflow, constant groups, single elements; as explain/_notes.py.
(function () {
  "use strict";
  const { notes: texts, phrases } = window.evenkeel.words;
  const { telling, from } = window.evenkeel;
  const { coordinates } = window.evenkeel.arithmetic;
  const NAMED = 4;

  const places = (spots) => spots.slice(0, NAMED).join(", ") + telling.tell(phrases.and_more, from({ unnamed: spots.length - NAMED }));
  const groupPlaces = (groups) => ({ places: places(groups), places_count: groups.length });

  function nonFinite(p, view) {
    return [["NaN", Number.isNaN], ["inf", (value) => Math.abs(value) === Infinity]].flatMap(([kind, odd]) => {
      const where = p.x.flatMap((value, i) => (odd(value) ? [i] : []));
      if (!where.length) return [];
      const hit = new Set(where.map((i) => p.groups[i]).filter((group) => group >= 0)).size;
      const spots = places(where.map((i) => `[${coordinates(i, p.shape).join(", ")}]`));
      return [view.tell(texts.non_finite, { kind, places: spots, groups_hit: hit, groups_spared: p.count - hit })];
    });
  }

  function describeConstant(p, v, constant, view) {
    const several = constant.filter((g) => p.n[g] > 1);
    if (!several.length) return view.tell(texts.single, { all_constant: constant.length === p.count });
    return view.tell(texts.constant, { divisor: v.denominator[several[0]], ...groupPlaces(several) });
  }

  function notes(p, v, view) {
    const { family } = p.row;
    const told = nonFinite(p, view);
    const groups = p.members.map((_, g) => g);
    const finite = groups.filter((g) => p.n[g] && p.members[g].every((i) => Number.isFinite(p.x[i])));
    const overflow = v.denominator ? finite.filter((g) => !Number.isFinite(v.denominator[g])) : [];
    if (overflow.length && !view.given) told.push(view.tell(texts.overflow, groupPlaces(overflow)));
    const constant = finite.filter((g) => !overflow.includes(g) && p.members[g].every((i) => p.x[i] === p.x[p.members[g][0]]));
    if ((family === "moments" || family === "minmax") && !view.given && constant.length) told.push(describeConstant(p, v, constant, view));
    if (family === "rms" && v.mean_square.includes(0)) told.push(view.tell(texts.zeros));
    const largest = p.x.reduce((most, value) => (Number.isNaN(value) ? most : Math.max(most, Math.abs(value))), 0);
    if (family === "image" && largest <= 1 && p.unitScale > 1) told.push(view.tell(texts.scaled_image));
    const empty = groups.filter((g) => p.n[g] === 0);
    if (empty.length) told.push(view.tell(texts.empty, groupPlaces(empty)));
    return told;
  }

  window.evenkeel.notes = notes;
})();
