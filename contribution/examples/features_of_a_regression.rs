//! The contribution of each feature to a regression: the game is R², the players are the columns.
//!
//! `cargo run -p florin-contribution --example features_of_a_regression`

use florin_contribution::{
    Coalition, Exact, Game, GameError, OddRegression, RunOptions, Valuation, value,
};

const FEATURES: [&str; 6] = ["area", "rooms", "age", "distance", "garden", "shoe size"];

/// Twenty-four houses: square metres, rooms, years, kilometres to the centre, square metres of
/// garden, the seller's shoe size, and the price in thousands. Synthetic data.
#[rustfmt::skip]
const HOUSES: [[f64; 7]; 24] = [
    [110.0, 4.0, 67.0, 1.0, 167.0, 46.0, 277.0],
    [140.0, 5.0, 31.0, 13.0, 92.0, 45.0, 312.0],
    [108.0, 3.0, 27.0, 14.0, 0.0, 42.0, 238.0],
    [80.0, 3.0, 56.0, 5.0, 0.0, 36.0, 202.0],
    [98.0, 4.0, 21.0, 6.0, 0.0, 39.0, 202.0],
    [97.0, 3.0, 25.0, 13.0, 0.0, 41.0, 191.0],
    [151.0, 5.0, 18.0, 9.0, 0.0, 40.0, 355.0],
    [131.0, 4.0, 45.0, 10.0, 201.0, 38.0, 270.0],
    [168.0, 6.0, 22.0, 2.0, 0.0, 41.0, 409.0],
    [152.0, 5.0, 1.0, 15.0, 0.0, 45.0, 333.0],
    [95.0, 3.0, 31.0, 15.0, 0.0, 44.0, 183.0],
    [139.0, 6.0, 4.0, 14.0, 0.0, 41.0, 341.0],
    [176.0, 7.0, 18.0, 11.0, 0.0, 40.0, 393.0],
    [65.0, 3.0, 39.0, 16.0, 0.0, 37.0, 94.0],
    [148.0, 4.0, 44.0, 9.0, 255.0, 38.0, 389.0],
    [53.0, 2.0, 42.0, 7.0, 0.0, 46.0, 126.0],
    [150.0, 5.0, 55.0, 12.0, 0.0, 42.0, 298.0],
    [88.0, 4.0, 58.0, 16.0, 0.0, 40.0, 175.0],
    [119.0, 4.0, 18.0, 4.0, 131.0, 46.0, 344.0],
    [91.0, 2.0, 34.0, 17.0, 297.0, 41.0, 178.0],
    [61.0, 3.0, 45.0, 23.0, 57.0, 40.0, 58.0],
    [116.0, 5.0, 33.0, 25.0, 0.0, 46.0, 229.0],
    [90.0, 3.0, 1.0, 16.0, 168.0, 41.0, 199.0],
    [173.0, 6.0, 45.0, 12.0, 0.0, 42.0, 344.0],
];

/// The value of a coalition of features is the R² of the least-squares fit to them.
struct Regression {
    /// The centred columns: the features, and last the price.
    columns: Vec<Vec<f64>>,
}

impl Regression {
    fn new(houses: &[[f64; 7]]) -> Self {
        let centred = |column: usize| {
            let mean = houses.iter().map(|house| house[column]).sum::<f64>() / houses.len() as f64;
            houses.iter().map(|house| house[column] - mean).collect()
        };
        Self { columns: (0..7).map(centred).collect() }
    }

    /// The residuals of the price after regression on the features of `coalition`, by Gram–Schmidt
    /// orthogonalisation.
    fn residuals(&self, coalition: &Coalition) -> Vec<f64> {
        let mut basis: Vec<Vec<f64>> = Vec::new();
        for feature in coalition.players() {
            basis.push(less(&self.columns[feature], &basis));
        }
        less(&self.columns[FEATURES.len()], &basis)
    }
}

/// `column` minus its projections on `directions`, which are orthogonal to each other.
fn less(column: &[f64], directions: &[Vec<f64>]) -> Vec<f64> {
    let mut rest = column.to_vec();
    for direction in directions {
        let along = dot(&rest, direction) / dot(direction, direction);
        rest.iter_mut().zip(direction).for_each(|(x, d)| *x -= along * d);
    }
    rest
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

impl Game for Regression {
    fn players(&self) -> usize {
        FEATURES.len()
    }

    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        let rows = self.value_rows(coalition)?;
        Ok(rows.iter().sum::<f64>() / rows.len() as f64)
    }

    /// R² is one minus the mean squared residual divided by the price's variance, so each house has
    /// its own term, and the scores have a standard error over the houses.
    fn value_rows(&mut self, coalition: &Coalition) -> Result<Vec<f64>, GameError> {
        let price = &self.columns[FEATURES.len()];
        let variance = dot(price, price) / price.len() as f64;
        Ok(self.residuals(coalition).iter().map(|rest| 1.0 - rest * rest / variance).collect())
    }
}

fn main() -> Result<(), florin_contribution::ValuationError> {
    let mut game = Regression::new(&HOUSES);
    let exact = value(&Exact, &mut game, &FEATURES, RunOptions::seeded(1))?;
    let sampled =
        value(&OddRegression, &mut game, &FEATURES, RunOptions::seeded(1).with_budget(24))?;
    print(&exact, &sampled);
    Ok(())
}

fn print(exact: &Valuation<&str>, sampled: &Valuation<&str>) {
    println!(
        "{:<10} {:>8} {:>10}   {:>8} {:>10}",
        "feature", "exact", "± houses", "odd", "± pairs"
    );
    for (exact, sampled) in exact.scores.iter().zip(&sampled.scores) {
        println!(
            "{:<10} {:>8.4} {:>10}   {:>8.4} {:>10}",
            exact.id,
            exact.value,
            bar(exact.standard_error),
            sampled.value,
            bar(sampled.estimator_error),
        );
    }
    println!("{:<10} {:>8.4} {:>10}   {:>8.4}", "R²", exact.total, "", sampled.total);
    println!("{:<10} {:>8} {:>10}   {:>8}", "passes", exact.evaluations, "", sampled.evaluations);
}

fn bar(error: Option<f64>) -> String {
    error.map_or_else(|| "unknown".to_owned(), |error| format!("{error:.4}"))
}
