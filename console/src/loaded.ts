// What a path of the server answers, for a part of a page.

import { useEffect, useState } from "preact/hooks";
import { ApiError, get } from "./api";
import { asApiError } from "./session";

const READ_AGAIN = 1000;

export interface Loaded<T> {
  value: T | null;
  error: ApiError | null;
  reload: () => void;
}

/** Reads a path, nothing for null; again when `version` changes, and every second as long as `runs` holds. */
export function useLoaded<T>(path: string | null, version?: unknown, runs: (value: T) => boolean = () => false): Loaded<T> {
  const [found, setFound] = useState<{ path: string; value: T | null; error: ApiError | null } | null>(null);
  const [times, setTimes] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const controller = new AbortController();
    let timer = 0;
    const read = async () => {
      try {
        const value = await get<T>(path, controller.signal);
        setFound({ path, value, error: null });
        if (runs(value)) timer = window.setTimeout(() => void read(), READ_AGAIN);
      } catch (problem) {
        if (controller.signal.aborted) return;
        const error = asApiError(problem);
        const isGone = error.status >= 400 && error.status < 500;
        setFound((before) => ({ path, value: before?.path === path && !isGone ? before.value : null, error }));
        if (!isGone) timer = window.setTimeout(() => void read(), READ_AGAIN);
      }
    };
    void read();
    return () => {
      controller.abort();
      window.clearTimeout(timer);
    };
  }, [path, version, times]);
  const { value, error } = found !== null && found.path === path ? found : { value: null, error: null };
  return { value, error, reload: () => setTimes(times + 1) };
}
