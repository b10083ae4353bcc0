"""A hook that offers a tool. Try it: ``patchbay hooks doctor python3 examples/hooks/weather.py``."""

from __future__ import annotations

from patchbay.hooks.sdk import Hook

hook = Hook("weather")

WEATHER = {
    "Beijing": "sunny, 15 °C",
    "Shanghai": "cloudy, 18 °C",
    "Guangzhou": "sunny, 25 °C",
}


@hook.tool
def get_weather(city: str) -> str:
    """Say how the weather is in a city.

    :param city: the city's name in English
    """
    if city not in WEATHER:
        raise ValueError(f"there is no weather of {city}; there is of {', '.join(WEATHER)}")
    return f"{city}: {WEATHER[city]}"


if __name__ == "__main__":
    hook.run()
