//! Pictures of how training went.

use std::path::Path;
use std::sync::Once;

use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const COLOURS: [RGBColor; 4] =
    [RGBColor(31, 119, 180), RGBColor(255, 127, 14), RGBColor(44, 160, 44), RGBColor(214, 39, 40)];

/// A line of a chart: its name, and its points from left to right.
pub(crate) struct Curve<'a> {
    pub(crate) name: &'a str,
    pub(crate) points: &'a [(f64, f64)],
}

/// One chart of a picture.
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) curves: &'a [Curve<'a>],
    /// Whether the points are shares, at most 1.
    pub(crate) is_share: bool,
}

/// The font travels with the program, so that no system library has to be there.
fn font() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let font = register_font("sans-serif", FontStyle::Normal, dejavu::sans::regular());
        assert!(font.is_ok(), "the font is whole");
    });
}

/// Writes charts side by side.
pub(crate) fn charts(path: &Path, charts: &[Chart<'_>]) -> Result<()> {
    font();
    let root = BitMapBackend::new(path, (560 * charts.len() as u32, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, chart) in root.split_evenly((1, charts.len())).iter().zip(charts) {
        let points = || chart.curves.iter().flat_map(|c| c.points.iter().copied());
        let right = points().map(|p| p.0).fold(1.0, f64::max);
        // A share is shown from its lowest point to 1, anything else from 0 to its highest.
        let lowest = points().map(|p| p.1).fold(1.0, f64::min);
        let (bottom, top) = if chart.is_share {
            ((lowest * 20.0).floor() / 20.0, 1.0)
        } else {
            let top = points().map(|p| p.1).filter(|v| v.is_finite()).fold(0.0, f64::max);
            (0.0, top * 1.05)
        };
        let mut drawn = ChartBuilder::on(area)
            .caption(chart.title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(52)
            .build_cartesian_2d(0.0..right, bottom..top)?;
        drawn
            .configure_mesh()
            .x_desc(chart.x)
            .x_label_formatter(&|x| if x.fract() == 0.0 { format!("{x:.0}") } else { String::new() })
            .label_style(("sans-serif", 13))
            .axis_desc_style(("sans-serif", 14))
            .light_line_style(BLACK.mix(0.04))
            .draw()?;
        for (curve, colour) in chart.curves.iter().zip(COLOURS.iter().cycle()) {
            drawn
                .draw_series(LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2)))?
                .label(curve.name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        drawn
            .configure_series_labels()
            .label_font(("sans-serif", 14))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.2))
            .draw()?;
    }
    root.present()?;
    Ok(())
}

/// A picture with its caption.
pub(crate) struct Tile<'a> {
    /// Grey values in [0, 1], row by row.
    pub(crate) pixels: &'a [f32],
    pub(crate) caption: String,
}

/// Writes small pictures in a grid, eight to a row.
pub(crate) fn tiles(path: &Path, title: &str, size: [usize; 2], tiles: &[Tile<'_>]) -> Result<()> {
    font();
    const COLUMNS: usize = 8;
    const SIDE: i32 = 112;
    const HEIGHT: i32 = SIDE + 34;
    let rows = tiles.len().div_ceil(COLUMNS).max(1) as i32;
    let root = BitMapBackend::new(path, (COLUMNS as u32 * 128 + 16, (rows * HEIGHT + 52) as u32))
        .into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(title, (16, 14), ("sans-serif", 20)))?;
    let dot = SIDE / size[0].max(size[1]) as i32;
    for (i, tile) in tiles.iter().enumerate() {
        let (left, top) = ((i % COLUMNS) as i32 * 128 + 16, (i / COLUMNS) as i32 * HEIGHT + 48);
        for (k, v) in tile.pixels.iter().enumerate() {
            let (y, x) = (top + (k / size[1]) as i32 * dot, left + (k % size[1]) as i32 * dot);
            let grey = (255.0 * (1.0 - v.clamp(0.0, 1.0))) as u8;
            root.draw(&Rectangle::new([(x, y), (x + dot, y + dot)], RGBColor(grey, grey, grey).filled()))?;
        }
        let end = (left + dot * size[1] as i32, top + dot * size[0] as i32);
        root.draw(&Rectangle::new([(left, top), end], BLACK.mix(0.3)))?;
        root.draw(&Text::new(tile.caption.as_str(), (left, top + SIDE + 6), ("sans-serif", 14)))?;
    }
    root.present()?;
    Ok(())
}
