//! Charts as SVG text, and the frame of the pages that show them: self-contained HTML without
//! scripts or external resources.
//!
//! The crate knows numbers, names and units. It never reads a file, and it knows nothing of the
//! market: the callers format what a number means.
//!
//! * [`Axis`] has a quantity with its unit; every chart prints it as the title of the axis.
//! * [`line_plot`], [`scatter_plot`], [`error_bars`], [`stacked_bars`], [`share_bar`] and
//!   [`heat_map`] draw charts for a page; [`panels`] and [`standalone_svg`] make SVG files.
//! * [`Colour`] names the colours. Green is not among them: on a page it means a passed check.
//! * [`page_start`], [`section`], [`figure_html`] and [`table_html`] are the frame of a page. Its
//!   style sheet fits a screen of 360 pixels; a wide table scrolls in its box.

mod axis;
mod bars;
mod error_bars;
mod heat_map;
mod legend;
mod line_plot;
mod line_style;
mod marker;
mod number_format;
mod page;
mod palette;
mod panels;
mod plot_area;
mod point;
mod text;

pub use axis::{Axes, Axis, Quantity, Unit};
pub use bars::{SharePart, share_bar, stacked_bars};
pub use error_bars::{ErrorBar, ErrorBarBounds, error_bars};
pub use heat_map::{HeatCell, HeatMap, HeatSide, Shading, heat_map};
pub use legend::{Sample, legend};
pub use line_plot::{Line, ScatterPoint, line_plot, scatter_plot};
pub use line_style::LineStyle;
pub use number_format::{format_number, thousands};
pub use page::{
    PAGE_END, figure_html, page_start, section, standalone_svg, style_sheet, table_html,
};
pub use palette::Colour;
pub use panels::{Panel, panels};
pub use point::Point;
pub use text::{NO_BREAK, escape_html, escape_prose, with_unit};
