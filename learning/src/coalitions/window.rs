//! Tiles of rows, and their first-layer outputs for the base and for each player.

use pulp::{Arch, Simd, WithSimd};

use super::aligned::Aligned;
use super::kernel::apply;
use super::layout::{Layer, LayerStack, TILE_ROWS};
use super::loss::PerRow;
use crate::data::Dataset;
use crate::parallel::parallel_map;

/// Number of tiles that one thread passes through the first layer at a time.
const STRIP_TILES: usize = 8;

/// Consecutive tiles. Row r of the whole data is row r mod 32 of tile r / 32, for any division of
/// the rows into chunks.
pub(super) struct TileWindow {
    /// For the base and then for each player, the first-layer output of its share, tile after tile.
    pub(super) sums: Vec<Aligned>,
    /// The features, tile after tile, if no first layer consumes them.
    pub(super) features: Aligned,
    pub(super) labels: Vec<PerRow<u32>>,
    rows: usize,
}

impl TileWindow {
    pub(super) fn tiles(&self) -> usize {
        self.labels.len()
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Number of rows of one tile.
    pub(super) fn rows_of(&self, tile: usize) -> usize {
        (self.rows - tile * TILE_ROWS).min(TILE_ROWS)
    }

    /// Bytes per tile for `players` players, including those needed during construction.
    pub(super) fn tile_bytes(net: &LayerStack, players: usize) -> usize {
        size_of::<f32>() * TILE_ROWS * ((players + 1) * net.summed_width() + net.inputs + 1)
    }
}

/// Collects rows for a window.
pub(super) struct WindowBuilder {
    features: Aligned,
    labels: Vec<PerRow<u32>>,
    width: usize,
    tiles: usize,
    rows: usize,
}

impl WindowBuilder {
    /// A buffer for `tiles` tiles of rows of `width` features.
    pub(super) fn new(width: usize, tiles: usize) -> Self {
        let features = Aligned::zeros(tiles * width * TILE_ROWS);
        Self { features, labels: Vec::with_capacity(tiles), width, tiles, rows: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Adds rows of `data` from `from` on until the window is full; returns their number.
    pub(super) fn add_rows(&mut self, data: &Dataset, from: usize) -> usize {
        let count = (data.rows() - from).min(self.tiles * TILE_ROWS - self.rows);
        for row in from..from + count {
            let (tile, lane) = (self.rows / TILE_ROWS, self.rows % TILE_ROWS);
            if lane == 0 {
                self.labels.push([0; TILE_ROWS]);
            }
            self.labels[tile][lane] = data.labels()[row];
            let lines = &mut self.features[tile * self.width * TILE_ROWS..];
            for (line, &value) in lines.chunks_exact_mut(TILE_ROWS).zip(data.row(row)) {
                line[lane] = value;
            }
            self.rows += 1;
        }
        count
    }

    pub(super) fn is_full(&self) -> bool {
        self.rows == self.tiles * TILE_ROWS
    }

    /// Applies the first layer to the rows, with the parameters of `players`, each times its share,
    /// the base first. Resets the buffer for the next rows.
    pub(super) fn finish(
        &mut self,
        net: &LayerStack,
        players: &[(&[f32], f64)],
        threads: usize,
    ) -> TileWindow {
        let rows = std::mem::take(&mut self.rows);
        let labels = std::mem::take(&mut self.labels);
        let used = labels.len() * self.width * TILE_ROWS;
        // The missing rows of the last tile have stale contents, which are never read.
        let features = &self.features[..used];
        let Some(first) = &net.first else {
            let mut retained = Aligned::zeros(used);
            retained.copy_from_slice(features);
            let sums = players.iter().map(|_| Aligned::zeros(0)).collect();
            return TileWindow { sums, features: retained, labels, rows };
        };
        let tile = first.lines * TILE_ROWS;
        let mut sums: Vec<Aligned> =
            players.iter().map(|_| Aligned::zeros(labels.len() * tile)).collect();
        let strips = labels.len().div_ceil(STRIP_TILES).min(threads);
        let strip = labels.len().div_ceil(strips.max(1)).max(1);
        let mut tasks = Vec::new();
        for (sums, &player) in sums.iter_mut().zip(players) {
            let to = sums.chunks_mut(strip * tile);
            for (to, from) in to.zip(features.chunks(strip * self.width * TILE_ROWS)) {
                tasks.push((player, from, to));
            }
        }
        parallel_map(threads, tasks, |((params, share), from, to)| {
            let parameters = net.pack_first(params, share);
            Arch::new().dispatch(FirstLayerTask {
                layer: first,
                parameters: &parameters,
                from,
                to,
            });
        });
        TileWindow { sums, features: Aligned::zeros(0), labels, rows }
    }
}

/// The first layer of one player on some tiles.
struct FirstLayerTask<'a> {
    layer: &'a Layer,
    parameters: &'a [f32],
    from: &'a [f32],
    to: &'a mut [f32],
}

impl WithSimd for FirstLayerTask<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let from = self.from.chunks_exact(self.layer.taps * TILE_ROWS);
        let to = self.to.chunks_exact_mut(self.layer.lines * TILE_ROWS);
        for (from, to) in from.zip(to) {
            apply::<S, false>(simd, self.layer, self.parameters, from, to);
        }
    }
}
