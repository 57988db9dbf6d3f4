//! The colours of all charts and pages, in light and in dark mode.
//!
//! Series have the colours of Okabe and Ito ("Color Universal Design", 2008) except their green and
//! their yellow: green is reserved for passed checks, and yellow is too pale on white. Violet and brown
//! take their places.

use std::fmt::Write as _;

/// Number of series colours.
pub(crate) const SERIES: usize = 8;

/// The colours of one mode, as hexadecimal RGB.
struct Mode {
    series: [&'static str; SERIES],
    /// The background of charts.
    card: &'static str,
    /// The other colours, by their name in the style sheet.
    named: [(&'static str, &'static str); 10],
}

const LIGHT: Mode = Mode {
    series: [
        "#0072b2", "#e69f00", "#cc79a7", "#d55e00", "#56b4e9", "#1d1c1a", "#6633cc", "#776655",
    ],
    card: "#ffffff",
    named: [
        ("page", "#f7f6f3"),
        ("ink", "#1d1c1a"),
        ("soft", "#6b6963"),
        ("line", "#e2e0da"),
        ("grid", "#eceae5"),
        ("sand", "#b79a5b"),
        ("good", "#1a7f4b"),
        ("bad", "#b3362b"),
        ("up", "#0072b2"),
        ("down", "#d55e00"),
    ],
};

const DARK: Mode = Mode {
    series: [
        "#3fa0e0", "#e69f00", "#cc79a7", "#d55e00", "#a5dcff", "#f0eeea", "#9966ff", "#6b6b6b",
    ],
    card: "#1f1f1d",
    named: [
        ("page", "#161614"),
        ("ink", "#edebe6"),
        ("soft", "#a19e96"),
        ("line", "#34332f"),
        ("grid", "#2a2927"),
        ("sand", "#8c7a52"),
        ("good", "#4cc38a"),
        ("bad", "#ef7b70"),
        ("up", "#3fa0e0"),
        ("down", "#d55e00"),
    ],
};

/// A colour of the palette.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// The colour of a series, by its index; the ninth series has the colour of the first.
    Series(usize),
    /// The colour of the text.
    Ink,
    /// Grey, for what is shown for comparison.
    Grey,
    /// A second colour for what is shown for comparison.
    Sand,
}

impl Colour {
    /// The value of a CSS property.
    #[must_use]
    pub fn css(self) -> String {
        match self {
            Self::Series(at) => format!("var(--c{})", at % SERIES),
            Self::Ink => "var(--ink)".to_owned(),
            Self::Grey => "var(--soft)".to_owned(),
            Self::Sand => "var(--sand)".to_owned(),
        }
    }
}

impl Mode {
    fn declarations(&self) -> String {
        let mut css = format!("--card:{};", self.card);
        for (at, colour) in self.series.iter().enumerate() {
            let _ = write!(css, "--c{at}:{colour};");
        }
        for (name, colour) in self.named {
            let _ = write!(css, "--{name}:{colour};");
        }
        css
    }
}

/// The palette as CSS variables of the root element, for both modes.
pub(crate) fn palette_css() -> String {
    format!(
        ":root{{color-scheme:light dark;{}}}@media(prefers-color-scheme:dark){{:root{{{}}}}}",
        LIGHT.declarations(),
        DARK.declarations()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rgb = [f64; 3];

    /// Linear RGB as dichromats see it, after Machado, Oliveira and Fernandes, "A Physiologically-
    /// based Model for Simulation of Color Vision Deficiency", 2009: protanopia, deuteranopia,
    /// tritanopia.
    const VISIONS: [[Rgb; 3]; 4] = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ],
    ];
    /// The least distance in CIELAB of two series; 2.3 is just noticeable.
    const DISTANCE_MIN: f64 = 17.0;
    /// The least contrast of a series with its background.
    const CONTRAST_MIN: f64 = 2.2;

    fn rgb(hex: &str) -> Rgb {
        [1, 3, 5].map(|at| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0)
    }

    fn linear(hex: &str) -> Rgb {
        rgb(hex).map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) })
    }

    fn dot(row: Rgb, colour: Rgb) -> f64 {
        row.iter().zip(colour).map(|(a, b)| a * b).sum()
    }

    fn luminance(colour: Rgb) -> f64 {
        dot([0.212_672_9, 0.715_152_2, 0.072_175_0], colour)
    }

    fn lab(colour: Rgb) -> Rgb {
        let curve = |t: f64| if t > 0.008_856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
        let x = curve(dot([0.412_456_4, 0.357_576_1, 0.180_437_5], colour) / 0.950_47);
        let y = curve(luminance(colour));
        let z = curve(dot([0.019_333_9, 0.119_192_0, 0.950_304_1], colour) / 1.088_83);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (a, b) = (luminance(linear(one)) + 0.05, luminance(linear(other)) + 0.05);
        a.max(b) / a.min(b)
    }

    /// Whether a colour is called green: its hue lies between yellow and cyan.
    fn is_green(hex: &str) -> bool {
        let [r, g, b] = rgb(hex);
        let (low, high) = (r.min(g).min(b), r.max(g).max(b));
        let span = high - low;
        span > 0.12 * high && high == g && 60.0 * (2.0 + (b - r) / span) > 65.0 && b < 0.95 * g
    }

    #[test]
    fn colour_blind_readers_can_tell_all_series_apart() {
        for mode in [LIGHT, DARK] {
            for vision in VISIONS {
                let seen = mode.series.map(|hex| {
                    let colour = linear(hex);
                    lab(vision.map(|row| dot(row, colour).clamp(0.0, 1.0)))
                });
                for (at, one) in seen.iter().enumerate() {
                    for (other, two) in seen[..at].iter().enumerate() {
                        let squares = one.iter().zip(two).map(|(a, b)| (a - b).powi(2));
                        let distance = squares.sum::<f64>().sqrt();
                        assert!(distance > DISTANCE_MIN, "{other} and {at}: {distance:.1}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_colour_stands_out_from_its_background() {
        for mode in [LIGHT, DARK] {
            for hex in mode.series {
                assert!(contrast(hex, mode.card) > CONTRAST_MIN, "{hex}");
            }
            for text in ["ink", "soft", "good", "bad"] {
                let hex = mode.named.iter().find(|(name, _)| *name == text).unwrap().1;
                assert!(contrast(hex, mode.card) > 4.5, "{text} {hex}");
            }
        }
    }

    #[test]
    fn only_a_passed_check_is_green() {
        assert!(is_green("#009e73") && is_green("#4cc38a") && !is_green("#56b4e9"));
        for mode in [LIGHT, DARK] {
            for hex in mode.series {
                assert!(!is_green(hex), "a series is green: {hex}");
            }
            for (name, hex) in mode.named {
                assert_eq!(is_green(hex), name == "good", "{name}: {hex}");
            }
        }
        assert!(!crate::page::STYLE.contains('#'), "all colours are in the palette");
    }
}
