//! SVG charts as text, without scripts or external resources.

use std::fmt::Write as _;

/// Width of a small chart, in SVG units.
const WIDTH: f64 = 460.0;
/// Height of a small chart, in SVG units.
const HEIGHT: f64 = 230.0;
/// Margins for labels: left, right, top, bottom.
const MARGIN: (f64, f64, f64, f64) = (52.0, 14.0, 10.0, 28.0);
/// Height of a row of a heat map.
const ROW: f64 = 30.0;

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Maps data coordinates to SVG coordinates.
struct ChartScale {
    x: (f64, f64),
    y: (f64, f64),
}

impl ChartScale {
    fn x(&self, value: f64) -> f64 {
        let span = (self.x.1 - self.x.0).max(f64::MIN_POSITIVE);
        MARGIN.0 + (value - self.x.0) / span * (WIDTH - MARGIN.0 - MARGIN.1)
    }

    fn y(&self, value: f64) -> f64 {
        let span = (self.y.1 - self.y.0).max(f64::MIN_POSITIVE);
        HEIGHT - MARGIN.3 - (value - self.y.0) / span * (HEIGHT - MARGIN.2 - MARGIN.3)
    }
}

/// A round tick distance that divides a span into about four parts.
fn step(span: f64) -> f64 {
    let raw = (span / 4.0).max(1e-12);
    let magnitude = 10f64.powf(raw.log10().floor());
    let of_ten = raw / magnitude;
    let nice = if of_ten <= 1.0 {
        1.0
    } else if of_ten <= 2.0 {
        2.0
    } else if of_ten <= 5.0 {
        5.0
    } else {
        10.0
    };
    nice * magnitude
}

fn axes(svg: &mut String, frame: &ChartScale, rounds: usize, label: &dyn Fn(f64) -> String) {
    let step = step(frame.y.1 - frame.y.0);
    let mut tick = (frame.y.0 / step).ceil() * step;
    while tick <= frame.y.1 + step * 1e-6 {
        let y = frame.y(tick);
        let _ = write!(
            svg,
            r#"<line x1="{}" x2="{}" y1="{y:.1}" y2="{y:.1}" stroke="var(--grid)"/><text x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
            MARGIN.0,
            WIDTH - MARGIN.1,
            MARGIN.0 - 8.0,
            y + 4.0,
            label(tick)
        );
        tick += step;
    }
    let every = rounds.div_ceil(12).max(1);
    for round in (0..=rounds).step_by(every) {
        let x = frame.x(round as f64);
        if x >= MARGIN.0 - 1.0 {
            let _ = write!(
                svg,
                r#"<text x="{x:.1}" y="{}" text-anchor="middle">{round}</text>"#,
                HEIGHT - 8.0
            );
        }
    }
}

fn open(title: &str) -> String {
    format!(r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#, escape(title))
}

/// A line chart over rounds; `values[0]` is the value before round 1.
pub(super) fn line(
    title: &str,
    values: &[f64],
    (low, high): (f64, f64),
    colour: &str,
    label: &dyn Fn(f64) -> String,
) -> String {
    let rounds = values.len().saturating_sub(1);
    let frame = ChartScale { x: (0.0, rounds as f64), y: (low, high) };
    let mut svg = open(title);
    axes(&mut svg, &frame, rounds, label);
    let points: Vec<(f64, f64)> = values
        .iter()
        .enumerate()
        .map(|(round, value)| (frame.x(round as f64), frame.y(*value)))
        .collect();
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let floor = frame.y(low);
    if let (Some((first, _)), Some((last, _))) = (points.first(), points.last()) {
        let _ = write!(
            svg,
            r#"<polygon points="{first:.1},{floor:.1} {} {last:.1},{floor:.1}" fill="{colour}" opacity="0.10"/>"#,
            path.join(" ")
        );
    }
    let _ = write!(
        svg,
        r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-linejoin="round"/>"#,
        path.join(" ")
    );
    for (round, ((x, y), value)) in points.iter().zip(values).enumerate() {
        let _ = write!(
            svg,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"><title>after round {round}: {}</title></circle>"#,
            label(*value)
        );
    }
    if let (Some((x, y)), Some(value)) = (points.last(), values.last()) {
        let above = if *y < MARGIN.2 + 22.0 { 20.0 } else { -10.0 };
        let _ = write!(
            svg,
            r#"<text class="strong" x="{x:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            y + above,
            label(*value)
        );
    }
    svg.push_str("</svg>");
    svg
}

/// A line chart of several participants over rounds; the values are cumulative.
pub(super) fn lines(
    title: &str,
    series: &[(String, String, Vec<f64>)],
    label: &dyn Fn(f64) -> String,
) -> String {
    let rounds =
        series.iter().map(|(.., values)| values.len()).max().unwrap_or(1).saturating_sub(1);
    let all = || series.iter().flat_map(|(.., values)| values.iter().copied());
    let (low, high) = (all().fold(0.0, f64::min), all().fold(0.0, f64::max));
    let pad = (high - low).max(1e-9) * 0.06;
    let frame = ChartScale {
        x: (0.0, rounds as f64),
        y: (if low < 0.0 { low - pad } else { 0.0 }, high + pad),
    };
    let mut svg = open(title);
    axes(&mut svg, &frame, rounds, label);
    for (name, colour, values) in series {
        let path: Vec<String> = values
            .iter()
            .enumerate()
            .map(|(round, value)| format!("{:.1},{:.1}", frame.x(round as f64), frame.y(*value)))
            .collect();
        let last = values.last().copied().unwrap_or_default();
        let _ = write!(
            svg,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2.2" stroke-linejoin="round"><title>{}: {}</title></polyline>"#,
            path.join(" "),
            escape(name),
            label(last)
        );
    }
    svg.push_str("</svg>");
    svg
}

/// Stacked bars over rounds; `rounds[r]` lists (name, colour, value).
pub(super) fn stacks(
    title: &str,
    rounds: &[Vec<(String, String, f64)>],
    label: &dyn Fn(f64) -> String,
) -> String {
    let top = rounds
        .iter()
        .map(|parts| parts.iter().map(|(.., value)| value.max(0.0)).sum::<f64>())
        .fold(1e-9, f64::max);
    let frame = ChartScale { x: (0.5, rounds.len() as f64 + 0.5), y: (0.0, top * 1.06) };
    let mut svg = open(title);
    axes(&mut svg, &frame, rounds.len(), label);
    let wide = (frame.x(1.0) - frame.x(0.0)) * 0.72;
    for (at, parts) in rounds.iter().enumerate() {
        let round = at + 1;
        let mut base = 0.0;
        for (name, colour, value) in parts.iter().filter(|(.., value)| *value > 0.0) {
            let (from, to) = (frame.y(base), frame.y(base + value));
            let _ = write!(
                svg,
                r#"<rect x="{:.1}" y="{to:.1}" width="{wide:.1}" height="{:.1}" fill="{colour}"><title>round {round}, {}: {}</title></rect>"#,
                frame.x(round as f64) - wide / 2.0,
                (from - to).max(0.0),
                escape(name),
                label(*value)
            );
            base += value;
        }
    }
    svg.push_str("</svg>");
    svg
}

/// A cell of a heat map.
#[derive(Debug, Clone)]
pub(super) struct Heat {
    /// From −1 (bad) to 1 (good); sets the colour.
    pub(super) strength: f64,
    /// Text in the cell.
    pub(super) text: String,
    /// Tooltip.
    pub(super) tooltip: String,
}

/// A heat map: one row per participant, one column per round.
pub(super) fn heat(title: &str, rows: &[(String, Vec<Heat>)]) -> String {
    let columns = rows.iter().map(|(_, cells)| cells.len()).max().unwrap_or(1).max(1);
    let (left, wide) = (150.0, 980.0);
    let cell = (wide - left) / columns as f64;
    let height = ROW * rows.len() as f64 + 26.0;
    let mut svg =
        format!(r#"<svg viewBox="0 0 {wide} {height}" role="img" aria-label="{}">"#, escape(title));
    for (at, (name, cells)) in rows.iter().enumerate() {
        let y = ROW * at as f64;
        let _ = write!(
            svg,
            r#"<text class="strong" x="0" y="{:.1}">{}</text>"#,
            y + ROW * 0.62,
            escape(name)
        );
        for (round, heat) in cells.iter().enumerate() {
            let x = left + cell * round as f64;
            let colour = if heat.strength < 0.0 { "--down" } else { "--up" };
            let _ = write!(
                svg,
                r#"<g><rect x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" rx="4" style="fill:rgba(var({colour}),{:.3})"/>"#,
                x + 1.5,
                y + 1.5,
                cell - 3.0,
                ROW - 3.0,
                0.05 + 0.6 * heat.strength.abs().min(1.0)
            );
            if cell > 44.0 {
                let _ = write!(
                    svg,
                    r#"<text x="{:.1}" y="{:.1}" text-anchor="middle" style="fill:var(--ink)">{}</text>"#,
                    x + cell / 2.0,
                    y + ROW * 0.64,
                    escape(&heat.text)
                );
            }
            let _ = write!(svg, "<title>{}</title></g>", escape(&heat.tooltip));
        }
    }
    for round in (0..columns).step_by(columns.div_ceil(20)) {
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            left + cell * (round as f64 + 0.5),
            height - 7.0,
            round + 1
        );
    }
    svg.push_str("</svg>");
    svg
}

/// One bar, divided into named parts that add up to the total.
pub(super) fn split(title: &str, parts: &[(String, String, f64)]) -> String {
    let whole = parts.iter().map(|(.., value)| *value).sum::<f64>().max(1e-9);
    let (wide, high) = (980.0, 46.0);
    let mut svg =
        format!(r#"<svg viewBox="0 0 {wide} {high}" role="img" aria-label="{}">"#, escape(title));
    let mut x = 0.0;
    for (name, colour, value) in parts {
        let width = value / whole * wide;
        let _ = write!(
            svg,
            r#"<rect x="{x:.1}" y="0" width="{:.1}" height="{high}" rx="3" fill="{colour}"><title>{}: {:.1} %</title></rect>"#,
            (width - 2.0).max(0.0),
            escape(name),
            100.0 * value / whole
        );
        x += width;
    }
    svg.push_str("</svg>");
    svg
}

/// A legend of colours and names.
pub(super) fn legend<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut html = String::from(r#"<div class="legend">"#);
    for (name, colour) in entries {
        let _ = write!(
            html,
            r#"<span><i class="dot" style="background:{colour}"></i>{}</span>"#,
            escape(name)
        );
    }
    html.push_str("</div>");
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_numbers() {
        for (span, expected) in [(1.0, 0.5), (0.4, 0.1), (100.0, 50.0), (7.9, 2.0)] {
            assert!((step(span) - expected).abs() < 1e-9, "{span}: {}", step(span));
        }
    }

    #[test]
    fn text_is_escaped_for_html() {
        assert_eq!(escape("<b>\"&"), "&lt;b&gt;&quot;&amp;");
    }

    #[test]
    fn an_empty_chart_is_valid_svg() {
        let label = |value: f64| format!("{value}");
        for svg in [
            line("t", &[], (0.0, 1.0), "red", &label),
            line("t", &[0.5], (0.0, 1.0), "red", &label),
            lines("t", &[], &label),
            stacks("t", &[], &label),
            heat("t", &[]),
            split("t", &[]),
        ] {
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
