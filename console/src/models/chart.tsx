// A chart of a few lines over time, by uPlot; what it shows is a table for who cannot see it.

import { useEffect, useRef } from "preact/hooks";
import { signal } from "@preact/signals";
import type uPlot from "uplot";
import { count, duration, lazily, timeOfDay } from "../format";
import { theme } from "../theme";
import { Line } from "../ui/text";

/** One line; `color` is the number of a token `--series-N`. */
export interface Series {
  name: string;
  color: number;
  values: (number | null)[];
}

export interface ChartProps {
  title: string;
  /** What the chart is about: models or tools. */
  of: string;
  unit: "number" | "seconds";
  times: number[];
  series: Series[];
  /** What stands beside the title while the pointer is elsewhere. */
  total: string;
  /** Shows the numbers as a table. */
  asTable: boolean;
}

const HEIGHT = 128;
const compact = lazily(() => new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }));
const clock = lazily(() => new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false }));

/** uPlot once it is loaded, when a chart is first shown: its start would take a tenth of every page's first view. */
const library = signal<typeof uPlot | null>(null);
const isMissing = signal(false);

function loadLibrary(): void {
  import("uplot").then(
    (loaded) => (library.value = loaded.default),
    () => (isMissing.value = true),
  );
}

/** The point under the pointer, in all charts. */
const hovered = signal<number | null>(null);
const isDark = signal(0);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => isDark.value++);

function words(value: number | null | undefined, unit: "number" | "seconds"): string {
  if (value == null) return "–";
  return unit === "seconds" ? duration(value) : value < 10_000 ? count(value) : compact().format(value);
}

export function Chart({ title, of, unit, times, series, total, asTable }: ChartProps) {
  const index = hovered.value;
  const at = index === null || asTable ? undefined : times[index];
  return (
    <figure class="chart">
      <figcaption>
        <h3>{title}</h3>
        <span class="readout">
          {at === undefined ? (
            total
          ) : (
            <>
              <span class="dim">{clock().format(at * 1000)}</span>
              {series.map((each) => (
                <span key={each.name} class={`value series-${each.color}`}>
                  {words(each.values[index!], unit)}
                </span>
              ))}
            </>
          )}
        </span>
      </figcaption>
      {asTable ? (
        <Numbers title={`${of}: ${title}`} unit={unit} times={times} series={series} />
      ) : (
        <Plot label={`${of}: ${title}. ${series.map((each) => `${each.name} at most ${words(Math.max(0, ...each.values.map((value) => value ?? 0)), unit)}`).join(", ") || "nothing"}`} unit={unit} times={times} series={series} />
      )}
    </figure>
  );
}

/** The points with a value, the newest first. */
function Numbers({ title, unit, times, series }: Pick<ChartProps, "title" | "unit" | "times" | "series">) {
  const rows = times.map((_, index) => index).filter((index) => series.some((each) => each.values[index]));
  if (!rows.length) return <p class="none">Nothing in this time.</p>;
  return (
    <div class="numbers" tabIndex={0} role="region" aria-label={`${title}, numbers`}>
      <table>
        <thead>
          <tr>
            <th scope="col">Time</th>
            {series.map((each) => (
              <th scope="col" key={each.name}>
                <Line text={each.name} />
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.reverse().map((index) => (
            <tr key={index}>
              <th scope="row">{timeOfDay(times[index]!)}</th>
              {series.map((each) => (
                <td key={each.name}>{words(each.values[index], unit)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Plot({ label, unit, times, series }: { label: string } & Pick<ChartProps, "unit" | "times" | "series">) {
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const data = [times, ...series.map((each) => each.values)] as uPlot.AlignedData;
  const Library = library.value;
  const look = `${theme.value} ${isDark.value} ${unit} ${series.map((each) => each.color).join()}`;
  useEffect(() => {
    const element = host.current!;
    if (!Library) return loadLibrary();
    const made = new Library(optionsOf(element, unit, series, Library.paths.stepped!), data, element);
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      hovered.value = null;
    };
  }, [look, Library]);
  useEffect(() => {
    if (plot.current?.data !== data) plot.current?.setData(data);
  }, [times, series]);
  if (isMissing.value) return <p class="none">The chart cannot be loaded: load the page again.</p>;
  return <div class="plot" ref={host} role="img" aria-label={label} />;
}

function optionsOf(
  element: HTMLElement,
  unit: "number" | "seconds",
  series: Series[],
  stepped: NonNullable<typeof uPlot.paths.stepped>,
): uPlot.Options {
  // A canvas knows no custom properties: the colours are those of a part of the page.
  const probe = element.appendChild(document.createElement("span"));
  const color = (name: string) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const [dim, line, surface] = [color("dim"), color("line"), color("page")];
  const lines = series.map((each): uPlot.Series => {
    const stroke = color(`series-${each.color}`);
    const isTime = unit === "seconds";
    return {
      stroke,
      width: 1.5,
      spanGaps: true,
      points: { show: isTime, size: 4, fill: stroke },
      ...(isTime ? {} : { paths: stepped({ align: 1 }) }),
    };
  });
  probe.remove();
  const font = `11px ${getComputedStyle(element).fontFamily}`;
  const axis = { stroke: dim, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
  return {
    width: Math.max(element.clientWidth, 100),
    height: HEIGHT,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: { y: false, sync: { key: "models" }, points: { size: 6, stroke: surface }, drag: { setScale: false, x: false, y: false } },
    hooks: { setCursor: [(made) => (hovered.value = made.cursor.idx ?? null)] },
    scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
    series: [{}, ...lines],
    axes: [
      { ...axis, grid: { show: false }, size: 22, gap: 4, space: 64, values: (_, splits) => splits.map((at) => clock().format(at * 1000)) },
      { ...axis, size: unit === "seconds" ? 64 : 48, gap: 4, space: 32, values: (_, splits) => splits.map((value) => (!value ? "0" : unit === "number" && value % 1 ? "" : words(value, unit))) },
    ],
  };
}
