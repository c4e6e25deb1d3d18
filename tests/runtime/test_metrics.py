"""The registry of metrics: what is counted, what is computed when it is read, bounds, and the text."""

import asyncio
import math

import pytest

from ottla.runtime.clock import SystemClock
from ottla.runtime.metrics import (
    Histogram,
    MetricKind,
    MetricsRegistry,
    MetricsText,
    RecentCounts,
    label_text,
    quantile,
)
from ottla.runtime.metrics_text import MetricSample, parse_metrics
from ottla.runtime.turns import Turns


def render(registry: MetricsRegistry) -> str:
    async def main() -> bytes:
        return await registry.render(Turns(SystemClock()))

    return asyncio.run(main()).decode()


def histogram_text(name: str, labels: str, histogram: Histogram) -> str:
    text = MetricsText()
    text.histogram(name, "", labels, histogram)
    return asyncio.run(text.encode(Turns(SystemClock()))).decode()


def samples(registry: MetricsRegistry, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for sample in parse_metrics(render(registry))
        if sample.name == name
    }


class TestText:
    def test_a_counter_and_a_gauge_have_help_and_type(self) -> None:
        registry = MetricsRegistry()
        registry.collect("requests_total", "All requests", MetricKind.COUNTER, (), lambda: 3)
        registry.collect("temperature", "Now", MetricKind.GAUGE, (), lambda: 1.5)
        assert render(registry) == (
            "# HELP requests_total All requests\n# TYPE requests_total counter\nrequests_total 3\n"
            "# HELP temperature Now\n# TYPE temperature gauge\ntemperature 1.5\n"
        )

    def test_a_histogram_counts_up_to_each_bound_in_the_unit_of_the_metric(self) -> None:
        times = Histogram([1_000_000, 5_000_000], scale=1e-9)
        for ns in (1_000_000, 2_000_000, 9_000_000):
            times.observe(ns)
        lines = histogram_text("wait_seconds", "", times).splitlines()[2:]
        assert lines == [
            'wait_seconds_bucket{le="0.001"} 1',
            'wait_seconds_bucket{le="0.005"} 2',
            'wait_seconds_bucket{le="+Inf"} 3',
            "wait_seconds_sum 0.012",
            "wait_seconds_count 3",
        ]

    def test_histograms_with_labels_keep_them_beside_the_bound(self) -> None:
        histogram = Histogram([1])
        histogram.observe(0.5)
        text = histogram_text("h", label_text(("op",), ("read",)), histogram)
        assert 'h_bucket{op="read",le="1"} 1' in text
        assert 'h_count{op="read"} 1' in text

    @pytest.mark.parametrize("value", ['quo"te', "back\\slash", "new\nline", "\ud800", "}{,=", "ü", ""])
    def test_any_label_value_comes_through_on_one_line(self, value: str) -> None:
        registry = MetricsRegistry()
        registry.collect("g", "G", MetricKind.GAUGE, ("name",), lambda: [((value,), 7)])
        assert samples(registry, "g") == {(value.encode("utf-8", "replace").decode(),): 7}

    def test_numbers_that_are_none_and_help_of_two_lines_are_readable(self) -> None:
        registry = MetricsRegistry()
        numbers = {"a": math.inf, "b": -math.inf, "c": math.nan, "d": True, "e": 1e300}
        registry.collect(
            "g", "two\nlines \\", MetricKind.GAUGE, ("n",), lambda: [((k,), v) for k, v in numbers.items()]
        )
        text = render(registry)
        assert "# HELP g two\\nlines \\\\\n" in text
        assert [line.rsplit(" ", 1)[1] for line in text.splitlines()[2:]] == [
            *("+Inf", "-Inf", "NaN", "1", "1e+300")
        ]

    def test_a_family_without_samples_is_left_out(self) -> None:
        registry = MetricsRegistry()
        registry.collect("c_total", "C", MetricKind.COUNTER, ("a",), list)
        assert render(registry) == ""

    def test_names_that_prometheus_does_not_take_are_refused(self) -> None:
        registry = MetricsRegistry()
        for name, labels in (("a-b", ()), ("ok", ("a-b",)), ("1a", ())):
            with pytest.raises(ValueError, match="not a name"):
                registry.collect(name, "", MetricKind.GAUGE, labels, lambda: 0)
        registry.collect("twice", "", MetricKind.COUNTER, (), lambda: 0)
        with pytest.raises(ValueError, match="already"):
            registry.collect("twice", "", MetricKind.GAUGE, (), lambda: 0)

    def test_what_is_no_text_of_metrics_is_refused_when_read(self) -> None:
        assert list(parse_metrics('# HELP a\na{b="c",} 1 1234\n')) == [MetricSample("a", {"b": "c"}, 1)]
        for line in ("<html>", 'a{b="c} 1', "a{b} 1", "a one"):
            with pytest.raises(ValueError, match=r"not|could not"):
                list(parse_metrics(line))


class TestCollectors:
    def test_samples_are_computed_for_each_scrape(self) -> None:
        registry = MetricsRegistry()
        values = iter((1, 2))
        registry.collect("g", "", MetricKind.GAUGE, (), lambda: next(values))
        assert samples(registry, "g") == {(): 1}
        assert samples(registry, "g") == {(): 2}

    def test_a_callback_that_fails_leaves_out_its_family_only_and_is_counted(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        registry = MetricsRegistry()

        def broken() -> float:
            raise RuntimeError("no such state")

        async def broken_walk(text: MetricsText, turns: Turns) -> None:
            raise OSError("gone")

        registry.collect("a", "", MetricKind.GAUGE, (), broken)
        registry.add_collector("walk", broken_walk)
        registry.collect("b_total", "", MetricKind.COUNTER, (), lambda: 1)
        render(registry)
        assert samples(registry, "b_total") == {(): 1}
        assert samples(registry, "ottla_metrics_collector_errors_total") == {("a",): 3, ("walk",): 3}
        assert len([each for each in caplog.records if "could not be computed" in each.message]) == 2

    def test_lines_of_one_family_stay_together_though_two_walks_write_them(self) -> None:
        registry = MetricsRegistry()

        async def walk(text: MetricsText, turns: Turns) -> None:
            text.gauge("shared", "S", [(("x",), 1)], ("a",))
            text.gauge("alone", "A", 2)

        registry.add_collector("one", walk)
        registry.add_collector("two", walk)
        lines = [line for line in render(registry).splitlines() if not line.startswith("#")]
        names = [line.split("{")[0].split(" ")[0] for line in lines]
        assert names[:4] == ["shared", "shared", "alone", "alone"]

    def test_a_long_text_is_written_in_turns(self) -> None:
        registry = MetricsRegistry()

        async def walk(text: MetricsText, turns: Turns) -> None:
            lines = text.family("long", "", MetricKind.GAUGE)
            for index in range(100_000):
                lines.append(f'long{{index="{index}"}} {index}')
                if turns.is_due():
                    await turns.pause()

        registry.add_collector("walk", walk)

        async def main() -> int:
            turns = Turns(SystemClock(), budget_ms=1, check_every=16)
            assert (await registry.render(turns)).count(b"\nlong{") == 100_000
            return turns.taken

        assert asyncio.run(main()) > 5


class TestQuantiles:
    def test_a_quantile_lies_within_the_class_that_has_it(self) -> None:
        histogram = Histogram([1, 2, 4])
        assert math.isnan(quantile(0.5, histogram.bounds, histogram.counts))
        for value in (0.5, 1.5, 1.5, 3):
            histogram.observe(value)
        assert quantile(0.5, histogram.bounds, histogram.counts) == 1.5
        assert quantile(1.0, histogram.bounds, histogram.counts) == 4
        histogram.observe(1_000)
        assert quantile(0.99, histogram.bounds, histogram.counts) == 4

    def test_recent_counts_forget_what_is_older_than_two_periods(self) -> None:
        recent, counts = RecentCounts(1_000), [0, 0]
        counts[0] = 10
        assert recent.look(counts, 0) == [10, 0]
        counts[1] = 5
        assert recent.look(counts, 500) == [10, 5]
        assert recent.look(counts, 1_000) == [0, 5]
        assert recent.look(counts, 2_500) == [0, 0]
        counts[0] = 12
        assert recent.look(counts, 2_600) == [2, 0]
