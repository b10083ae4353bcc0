// What the console knows of its server, and whether the reader is signed in.

import { signal } from "@preact/signals";
import { ApiError, type ConsoleInfo, get, post } from "./api";

export const info = signal<ConsoleInfo | null>(null);
export const infoError = signal<ApiError | null>(null);

/** The sign-in dialog is open. */
export const needsSignIn = signal(false);

export async function loadInfo(): Promise<void> {
  try {
    info.value = await get<ConsoleInfo>("/api/console");
    infoError.value = null;
    needsSignIn.value = info.value.needs_token && !info.value.signed_in;
  } catch (error) {
    infoError.value = asApiError(error);
  }
}

/** Signs in; throws ApiError with 401 for another token. */
export async function signIn(token: string): Promise<void> {
  await post("/api/console/session", { token });
  await loadInfo();
}

export function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  return new ApiError(0, error instanceof Error ? error.message : String(error));
}
