"""A plugin: its host registers the tools, carries calls here, and starts the process again if it falls over."""

import asyncio

from patchbay.plugins import Err, Ok, PluginBase, Progress, lifecycle, llm_tool, plugin

WEATHER = {"Beijing": (22, "sunny"), "Oslo": (3, "rain"), "Tunis": (31, "windy")}


@plugin
class WeatherPlugin(PluginBase):
    @lifecycle(id="startup")
    async def startup(self, **_):
        self.logger.info("the weather of %d cities", len(WEATHER))

    @llm_tool
    async def get_weather(self, *, city: str):
        """Look up the weather in a given city.

        :param city: the city's name, such as 'Beijing'
        """
        if city not in WEATHER:
            return Err(f"city not found: {city}")
        degrees, weather = WEATHER[city]
        if self.config.get("weather.units", "C") == "F":
            degrees = degrees * 9 / 5 + 32
        return {"city": city, "temperature": degrees, "weather": weather}

    @llm_tool(timeout=60)
    async def find_warmest_city(self, *, cities: list[str]):
        """Compare cities, and name the one where it is warmest.

        :param cities: the cities' names
        """
        known = [city for city in cities if city in WEATHER]
        if not known:
            yield Err("none of these cities is known")
            return
        for number, city in enumerate(known):
            yield Progress(f"asking {city}", fraction=number / len(known))
            await asyncio.sleep(0)  # where a real plugin would ask a service
        yield Ok({"city": max(known, key=lambda city: WEATHER[city][0])})
