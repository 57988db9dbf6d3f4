//! Products of matrices over a prime field by libtorch, on one thread of the processor.

use tch::Tensor;

use super::threads::set_threads;
use crate::field_products::{FIELD_SIDE, FieldProducts, floats, reduced};

/// Products by libtorch, on the thread that calls it.
#[derive(Debug, Default)]
pub struct TorchFieldProducts {
    sum: Vec<f32>,
}

impl FieldProducts for TorchFieldProducts {
    fn multiply_add(&mut self, before: &[u8], factor: &[u8], added: &[u8]) -> Vec<u8> {
        set_threads(1);
        self.sum.resize(FIELD_SIDE * FIELD_SIDE, 0.0);
        let side = FIELD_SIDE as i64;
        let matrix = |bytes| Tensor::from_slice(&floats(bytes)).view([side, side]);
        let sum = matrix(added).addmm(&matrix(before), &matrix(factor)).contiguous();
        sum.view([-1]).copy_data(&mut self.sum, FIELD_SIDE * FIELD_SIDE);
        reduced(&self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field_products::PlainFieldProducts;
    use crate::field_products::tests::matrices;

    #[test]
    fn products_of_libtorch_are_those_of_the_plain_engine() {
        for (a, b, c) in [(0, 0, 0), (1, 2, 3), (0, 4, 1)] {
            let [a, b, c] = [a, b, c].map(matrices);
            let plain = PlainFieldProducts::default().multiply_add(&a, &b, &c);
            let torch = TorchFieldProducts::default().multiply_add(&a, &b, &c);
            assert!(plain == torch);
        }
    }
}
