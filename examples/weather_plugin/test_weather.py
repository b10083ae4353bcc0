"""The plugin's test: no server and no other process, but the real schemas, limits and errors."""

import asyncio
from pathlib import Path

from main import WeatherPlugin

from patchbay.testing import run_plugin


async def call(name, config=None, **arguments):
    options = {"config": config} if config is not None else {"folder": Path(__file__).parent}
    async with run_plugin(WeatherPlugin, **options) as plugin:
        return await plugin.call(name, **arguments)


def test_the_weather_of_a_city_in_both_units():
    assert asyncio.run(call("get_weather", city="Oslo")).output["temperature"] == 3
    assert asyncio.run(call("get_weather", config={"weather": {"units": "F"}}, city="Oslo")).output["temperature"] == 37.4


def test_a_city_that_is_not_known_is_an_error():
    assert asyncio.run(call("get_weather", city="Atlantis")).error == "city not found: Atlantis"


def test_the_warmest_city_comes_after_its_progress():
    result = asyncio.run(call("find_warmest_city", cities=["Oslo", "Tunis"]))
    assert (result.output, result.progress) == ({"city": "Tunis"}, ("asking Oslo", 0.0, "asking Tunis", 0.5))
