//! Bins of keys and queries.

use crate::cpu::simd;
use crate::weights::Vector;

/// Locality-sensitive hashing of keys and queries, each less the mean up to and including itself.
pub struct Hash {
    /// `[width, columns]`.
    pub weight: Vector,
    /// Whether the signs of the products form the bin's number, one bit each; otherwise it is the column of the largest product.
    pub signs: bool,
}

impl Hash {
    pub(super) fn bins(&self, width: usize) -> usize {
        let columns = self.weight.len() / width;
        if self.signs { 1 << columns } else { columns }
    }

    /// The bin of a centred key or query.
    #[inline(always)]
    pub(super) fn bin(&self, x: &[f32], products: &mut [f32]) -> usize {
        let columns = self.weight.len() / x.len();
        let products = &mut products[..columns];
        products.fill(0.0);
        for (&x, weights) in x.iter().zip(self.weight.chunks_exact(columns)) {
            simd::axpy(x, weights, products);
        }
        if self.signs {
            let bit = |(r, &product): (usize, &f32)| usize::from(product > 0.0) << r;
            return products.iter().enumerate().map(bit).sum();
        }
        let mut largest = 0;
        for (r, &product) in products.iter().enumerate() {
            if product > products[largest] {
                largest = r;
            }
        }
        largest
    }
}
