// Numbers that each chart must show, computed from the document alone. The charts' own code is not used.

const measured = (document) => document.trials.filter((trial) => trial.value !== null);

function kindOf(trial) {
  if (trial.is_earlier_context) return "earlier";
  if (trial.is_look) return "look";
  if (trial.is_disturbed) return "disturbed";
  if (trial.is_feasible === false) return "over";
  return trial.is_confirmation ? "confirmation" : "within";
}

// Series of rows with intervals.
function rows(data) {
  return {
    intervals: data.flatMap(({ low, high }, index) => (low === null || high === null ? [] : [[index, low, high]])),
    points: data.map(({ value }, index) => [value, index]),
  };
}

const withoutEmpty = (series) => Object.fromEntries(Object.entries(series).filter(([, data]) => data.length > 0));

function convergence(document) {
  const series = { best: document.trials.filter((trial) => trial.best !== null).map((trial) => [trial.trial, trial.best]) };
  const marks = {};
  for (const trial of measured(document)) (marks[kindOf(trial)] ??= []).push([trial.trial, trial.value]);
  for (const [row, state] of ["failed", "rejected"].entries()) {
    series[state] = document.trials.filter((trial) => trial.state === state).map((trial) => [trial.trial, row]);
  }
  const winner = document.trials.find((trial) => trial.trial === document.winner?.trial);
  return { ...series, ...marks, ...(winner ? { winner: [[winner.trial, winner.value]] } : {}) };
}

export function tradeoff(document, x, y) {
  const metric = (trial, name) => trial.metrics?.[document.metrics.indexOf(name)] ?? null;
  const point = (trial) => [metric(trial, x), metric(trial, y), trial.trial];
  const trials = document.trials.filter((trial) => metric(trial, x) !== null && metric(trial, y) !== null);
  const points = (holds) => trials.filter(holds).map(point);
  const front = document.fronts.find((one) => [`${one.x} ${one.y}`, `${one.y} ${one.x}`].includes(`${x} ${y}`));
  const joined = (front?.trials ?? []).map((number) => trials.find((trial) => trial.trial === number)).filter(Boolean);
  return withoutEmpty({
    front: joined.map(point),
    over: points((trial) => trial.is_feasible === false),
    within: points((trial) => trial.is_feasible !== false),
    defaults: points((trial) => trial.origin === "baseline"),
    deployment: points((trial) => trial.origin === "deployment"),
    winner: points((trial) => trial.trial === document.winner?.trial),
  });
}

function load(document, metric) {
  const curves = document.load_curves.map((curve, index) => [
    `curve-${index}`,
    curve.points.filter((point) => (point.metrics[metric] ?? null) !== null).map((point) => [point.load, point.metrics[metric]]),
  ]);
  const hasLimit = document.limits.some((limit) => limit.metric === metric);
  return { ...Object.fromEntries(curves), ...(hasLimit ? { limits: [] } : {}) };
}

function aboutOf(document, selected) {
  return document.importance.about.find((about) => `${about.of} ${about.name}` === selected["importance-about"]);
}

function importance(document, selected) {
  const parameters = aboutOf(document, selected).parameters;
  const series = {};
  for (const kind of ["total", "alone"]) {
    series[kind] = parameters.map((one, index) => [one[kind].share, index]);
    series[`${kind}-intervals`] = parameters.map((one, index) => [index, one[kind].low, one[kind].high]);
  }
  return series;
}

function dependence(document, selected) {
  const one = aboutOf(document, selected).parameters.find((one) => one.parameter === selected["importance-parameter"]);
  const isNumber = one.dependence.every((point) => typeof point.value === "number");
  const place = (point, index) => (isNumber ? point.value : index);
  return {
    mean: one.dependence.map((point, index) => [place(point, index), point.mean]),
    intervals: one.dependence.map((point, index) => [place(point, index), point.low, point.high]),
  };
}

function time(document) {
  const { parts, saved } = document.time;
  return {
    spent: [...parts.map((part) => part.seconds), ...saved.map(() => null)],
    saved: [...parts.map(() => null), ...saved.map((part) => part.seconds)],
  };
}

function timeline(samples) {
  return Object.fromEntries(
    Object.entries(samples.series).map(([name, values]) => [name, samples.at_s.map((at, index) => [at, values[index]])]),
  );
}

function predicted(document) {
  const trials = measured(document).filter((trial) => trial.expected !== null);
  const series = {};
  for (const [id, isInside] of [["inside", true], ["outside", false]]) {
    const own = trials.filter(({ value, expected }) => (expected.low <= value && value <= expected.high) === isInside);
    series[id] = own.map((trial) => [trial.expected.mean, trial.value, trial.trial]);
    series[`${id}-intervals`] = own.map((trial) => [trial.value, trial.expected.low, trial.expected.high]);
  }
  return series;
}

// Names of the charts that the document has data for.
export function expectedCharts(document) {
  const has = {
    gains: document.gains.some((gain) => gain.factor !== null),
    values: document.values.some((row) => row.value !== null),
    flags: document.flags.some((flag) => flag.effect !== null),
    convergence: measured(document).length > 0,
    tradeoff: document.metrics.length > 0 && document.trials.some((trial) => trial.metrics !== null),
    load: document.load_curves.some((curve) => curve.points.length > 0),
    parallel: expectedAxes(document).axes.length > 1,
    importance: Boolean(document.importance?.about.length),
    dependence: Boolean(document.importance?.about.length),
    time: document.time.parts.some((part) => part.seconds !== 0),
    timeline:
      Object.keys(document.timelines).length > 0 || (document.timelines_url !== null && document.trials.some((trial) => trial.metrics !== null)),
    predicted: measured(document).some((trial) => trial.expected !== null),
  };
  return Object.keys(has).filter((name) => has[name]);
}

// Data of each series of a chart, by the identifier of the series. `samples` are the selected trial's timeline.
export function expectedSeries(chart, document, selected, samples) {
  switch (chart) {
    case "gains":
      return rows(document.gains.map((gain) => ({ ...gain, value: gain.factor === null ? null : gain.factor - 1 })));
    case "values":
      return rows(document.values);
    case "flags":
      return rows(document.flags.filter((flag) => flag.effect !== null).map((flag) => ({ ...flag, value: flag.effect })));
    case "convergence":
      return convergence(document);
    case "tradeoff":
      return tradeoff(document, selected["tradeoff-x"], selected["tradeoff-y"]);
    case "load":
      return load(document, selected["load-metric"]);
    case "importance":
      return importance(document, selected);
    case "dependence":
      return dependence(document, selected);
    case "time":
      return time(document);
    case "timeline":
      return timeline(samples);
    case "predicted":
      return predicted(document);
    default:
      return null;
  }
}

// Axes of the parallel coordinates: `read` returns a trial's place on the axis, or "-".
export function expectedAxes(document) {
  const trials = measured(document);
  const axes = document.parameters.map((parameter) => {
    const used = trials.filter((trial) => parameter.name in trial.config).map((trial) => trial.config[parameter.name]);
    const isNumber = parameter.kind === "number" && used.every((value) => typeof value === "number");
    const values = [...new Set([...parameter.values, ...used].map(String))];
    const place = (value) => (isNumber ? value : values.indexOf(String(value)));
    const read = (trial) => (parameter.name in trial.config ? place(trial.config[parameter.name]) : "-");
    return { id: `parameter ${parameter.name}`, name: parameter.name, isNumber, values, used, read };
  });
  const objective = { id: "objective", name: document.objective?.name ?? "value", isNumber: true, values: [], used: [], read: (trial) => trial.value };
  return { trials, axes: [...axes.filter((one) => new Set(one.used).size > 1), objective] };
}

// Numbers of the trials within `intervals`, the best first. Ties keep the order of trials.
export function expectedSelection(document, intervals) {
  const { axes, trials } = expectedAxes(document);
  const inside = (trial) =>
    axes.every((one) => {
      const interval = intervals[one.id];
      const place = one.read(trial);
      return !interval || (place !== "-" && interval[0] <= place && place <= interval[1]);
    });
  const sign = document.objective?.goal === "minimize" ? 1 : -1;
  return trials.filter(inside).sort((a, b) => sign * (a.value - b.value)).map((trial) => trial.trial);
}
