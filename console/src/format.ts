// Numbers, times and durations in words.

/** Returns what `make` makes at the first call: a formatter costs the page's first view milliseconds. */
export function lazily<T>(make: () => T): () => T {
  let made: T | undefined;
  return () => (made ??= make());
}

const clock = lazily(() => new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false }));
const day = lazily(() => new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" }));
const whole = lazily(() => new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hour12: false }));
const grouped = lazily(() => new Intl.NumberFormat("en"));

/** The time of day, with the date where it is another day. */
export function timeOfDay(seconds: number): string {
  const date = new Date(seconds * 1000);
  const text = clock().format(date);
  return date.toDateString() === new Date().toDateString() ? text : `${day().format(date)} ${text}`;
}

export function dateAndTime(seconds: number): string {
  return whole().format(new Date(seconds * 1000));
}

export function duration(seconds: number | null | undefined): string {
  if (seconds == null) return "";
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.995) return `${seconds.toFixed(2)} s`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const rounded = Math.round(seconds);
  if (rounded < 3600) return `${Math.floor(rounded / 60)} m ${String(rounded % 60).padStart(2, "0")} s`;
  return `${Math.floor(rounded / 3600)} h ${String(Math.floor((rounded % 3600) / 60)).padStart(2, "0")} m`;
}

/** A time that is left, of a width that stays: 4:32, 1:04:32. */
export function countdown(seconds: number): string {
  const left = Math.max(0, Math.ceil(seconds));
  const [hours, minutes] = [Math.floor(left / 3600), Math.floor(left / 60) % 60];
  const rest = String(left % 60).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

export function count(value: number | null | undefined): string {
  return value == null ? "" : grouped().format(value);
}

/** "1 call", "2 calls". */
export function plural(value: number, noun: string): string {
  return `${grouped().format(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function bytes(value: number): string {
  return value < 1024 * 1024 ? `${Math.round(value / 1024)} KiB` : `${Math.round(value / 1024 / 1024)} MiB`;
}

/** Seconds since 1970 of an RFC 3339 time, with its fraction to the nanosecond. */
export function parseTime(text: string | undefined): number | null {
  const found = /^(.*?)(\.\d+)?(Z|[+-]\d\d:\d\d)$/.exec(text ?? "");
  if (!found) return null;
  const seconds = Date.parse(found[1]! + found[3]!) / 1000;
  return Number.isNaN(seconds) ? null : seconds + Number(found[2] ?? 0);
}
