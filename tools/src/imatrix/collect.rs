//! Sums the squares of the inputs of a file's matrices.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use waterline::internal::Tensors;
use waterline_quant::gguf::{Array, Gguf, NewTensor, Value, Writer};
use waterline_quant::imatrix::{COUNTS, SUMS};
use waterline_quant::{F32, ObservedProduct, ProductObserver, Tensor};

use crate::error::{Error, Result};
use crate::mix::is_quantized;

/// Sums the squared inputs of matrix products.
pub struct Collector(Arc<Vec<Entry>>);

/// A tensor of the file: one matrix, or several of one shape.
struct Entry {
    name: String,
    /// The addresses of the tensor's bytes.
    bytes: Range<usize>,
    /// Size of one matrix in bytes.
    stride: usize,
    cols: usize,
    sums: Mutex<Sums>,
}

struct Sums {
    /// Sums of squared inputs, `cols` numbers for each matrix.
    squares: Vec<f32>,
    /// Number of inputs of each matrix.
    counts: Vec<f32>,
}

impl Collector {
    /// Starts with empty sums for the file's matrices that llama-quantize quantizes, except embedding and output.
    /// `opened` are the tensors that the model reads.
    ///
    /// # Errors
    /// A tensor has an unknown format.
    pub fn new(gguf: &Gguf, opened: &Tensors) -> Result<Self> {
        let places: Vec<Range<usize>> = opened.values().map(addresses).collect();
        let in_file = |at: usize| {
            let mut tensors = gguf.tensors().iter();
            tensors.any(|info| {
                let tensor = gguf.tensor(&info.name);
                tensor.is_ok_and(|tensor| addresses(&tensor).contains(&at))
            })
        };
        // The model keeps copies of some matrices, with the rows in another order.
        let copies = opened.values().zip(&places);
        let copies: HashMap<u64, Range<usize>> = copies
            .filter(|(_, place)| !in_file(place.start))
            .map(|(tensor, place)| (rows_hash(tensor), place.clone()))
            .collect();
        let mut entries = Vec::new();
        for info in gguf.tensors() {
            let is_outermost = ["token_embd.weight", "output.weight"].contains(&info.name.as_str());
            if is_outermost || !is_quantized(&info.name, &info.shape) {
                continue;
            }
            let tensor = gguf.tensor(&info.name)?;
            let cols = info.shape[info.shape.len() - 1];
            let mut bytes = addresses(&tensor);
            if !places.iter().any(|place| bytes.contains(&place.start)) {
                bytes = copies.get(&rows_hash(&tensor)).cloned().unwrap_or(bytes);
            }
            let matrices: usize = info.shape.iter().rev().skip(2).product();
            entries.push(Entry {
                name: info.name.clone(),
                stride: tensor.data.len() / matrices.max(1),
                cols,
                bytes,
                sums: Mutex::new(Sums {
                    squares: vec![0.0; matrices * cols],
                    counts: vec![0.0; matrices],
                }),
            });
        }
        entries.sort_by_key(|entry| entry.bytes.start);
        Ok(Collector(Arc::new(entries)))
    }

    /// Returns an observer of a session's products that adds to the sums.
    pub fn observer(&self) -> ProductObserver {
        let entries = Arc::clone(&self.0);
        Arc::new(move |product| {
            let address = product.rows().as_ptr() as usize;
            let after = entries.partition_point(|entry| entry.bytes.start <= address);
            let entry = after.checked_sub(1).map(|index| &entries[index]);
            if let Some(entry) = entry.filter(|entry| entry.bytes.contains(&address)) {
                entry.add(address, product);
            }
        })
    }

    /// Writes the sums in llama-imatrix's format. `read` holds the number of windows and the tokens of each. Returns a summary.
    ///
    /// # Errors
    /// No matrix was read, or the file cannot be written.
    pub fn write(&self, path: &Path, dataset: &str, read: [usize; 2]) -> Result<String> {
        let is_read = |entry: &&Entry| entry.sums().counts.iter().any(|&count| count > 0.0);
        let known: Vec<&Entry> = self.0.iter().filter(is_read).collect();
        if known.is_empty() {
            let message = "the model reads none of the file's matrices in place";
            return Err(Error::input(path, message));
        }
        let texts = Value::Array(Array::String(vec![dataset.into()]));
        let [chunks, chunk] = read.map(|count| Value::U32(count as u32));
        let metadata = [
            ("general.type", Value::String("imatrix".into())),
            ("imatrix.datasets", texts),
            ("imatrix.chunk_count", chunks),
            ("imatrix.chunk_size", chunk),
        ];
        let metadata = metadata.map(|(key, value)| (key.to_string(), value));
        let tensor = |entry: &Entry, ending: &str, cols: usize| NewTensor {
            name: format!("{}{ending}", entry.name),
            format: &F32,
            shape: vec![entry.sums().counts.len(), cols],
        };
        let tensors = known
            .iter()
            .flat_map(|entry| [tensor(entry, SUMS, entry.cols), tensor(entry, COUNTS, 1)]);
        let tensors: Vec<NewTensor> = tensors.collect();
        let mut writer = Writer::create(path, &metadata, &tensors).map_err(Error::Output)?;
        for entry in &known {
            let sums = entry.sums();
            for numbers in [&sums.squares, &sums.counts] {
                let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
                writer.write_tensor(&bytes).map_err(Error::Output)?;
            }
        }
        writer.finish().map_err(Error::Output)?;
        let [windows, tokens] = read;
        let (known, all) = (known.len(), self.0.len());
        let mut report = format!("{known} matrices, {windows} windows of {tokens} tokens");
        if known < all {
            report += &format!(
                "; {} matrices were not read as they lie in the file",
                all - known
            );
        }
        Ok(report)
    }
}

fn addresses(tensor: &Tensor) -> Range<usize> {
    let range = tensor.data.as_ptr_range();
    range.start as usize..range.end as usize
}

/// A hash of a tensor's rows that does not depend on their order.
fn rows_hash(tensor: &Tensor) -> u64 {
    let (rows, _) = tensor.rows_cols();
    let row_bytes = (tensor.data.len() / rows.max(1)).max(1);
    let hash = |row: &[u8]| {
        let mut hasher = DefaultHasher::new();
        row.hash(&mut hasher);
        hasher.finish()
    };
    let rows = tensor.data.chunks(row_bytes);
    rows.fold(0, |sum: u64, row| sum.wrapping_add(hash(row)))
}

impl Entry {
    fn sums(&self) -> std::sync::MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the inputs of the product whose rows begin at `address`. Only the product with a matrix's first row counts,
    /// so each input is counted once.
    fn add(&self, address: usize, product: &ObservedProduct) {
        let offset = address - self.bytes.start;
        if !offset.is_multiple_of(self.stride) {
            return;
        }
        let matrix = offset / self.stride;
        let mut sums = self.sums();
        let Sums { squares, counts } = &mut *sums;
        let squares = &mut squares[matrix * self.cols..][..self.cols];
        product.each_input(|input| {
            for (sum, x) in squares.iter_mut().zip(input) {
                *sum += x * x;
            }
            counts[matrix] += 1.0;
        });
    }
}
