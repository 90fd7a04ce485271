//! How fast one thread multiplies with a matrix that its second-level cache holds, at every SIMD level.
//!
//! For one token in GB/s of weights, for several in billions of multiply-adds a second (a token and a weight each). The best of
//! many short turns, so that what else the machine does matters little.
//!
//! ```text
//! cargo run --release -p waterline-quant --example kernels [KiB per matrix] [FORMAT...]
//! ```

use std::time::{Duration, Instant};

use waterline_quant::{Activations, Bytes, FORMATS, Format, Matrix, Output, Simd};

const COLS: usize = 2048;
const TOKENS: [usize; 7] = [1, 4, 8, 16, 32, 64, 256];
const TIME: Duration = Duration::from_millis(60);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kib: usize = arguments
        .next()
        .map_or(512, |text| text.parse().expect("KiB per matrix"));
    let names: Vec<String> = arguments.collect();
    let formats: Vec<&Format> = if names.is_empty() {
        FORMATS.to_vec()
    } else {
        (names.iter())
            .map(|name| Format::by_name(name).expect("format"))
            .collect()
    };
    println!(
        "{kib} KiB per matrix, {COLS} columns; GB/s of weights for T=1, G multiply-adds/s for more"
    );
    let heads: Vec<String> = TOKENS
        .iter()
        .map(|t| format!("{:>8}", format!("T={t}")))
        .collect();
    println!("format  level       {}   load 256, us", heads.join(""));
    for format in formats {
        let rows = ((kib << 10) / format.row_bytes(COLS).expect("blocks")).next_multiple_of(16);
        let values: Vec<f32> = (0..16 * COLS)
            .map(|i| (i as f32 * 1.7).sin() * (i as f32 * 0.013).cos())
            .collect();
        let mut pattern = vec![0; 16 * format.row_bytes(COLS).expect("blocks")];
        format.encode_or_imitate(&values, &mut pattern);
        let data = Bytes::from_vec(pattern.repeat(rows / 16));
        let inputs: Vec<f32> = (0..256 * COLS).map(|i| (i as f32 * 0.37).sin()).collect();
        for simd in Simd::available().filter(|simd| *simd != Simd::Scalar) {
            let matrix = Matrix::with_simd(format, rows, COLS, data.clone(), simd).expect("matrix");
            let mut speeds = String::new();
            let mut x = Activations::new(256, COLS).expect("memory");
            x.force_simd(simd);
            for tokens in TOKENS {
                x.load(&inputs[..tokens * COLS], tokens, COLS, format.rounding());
                let mut out = vec![0.0; tokens * rows];
                let seconds = best(|| {
                    let out = Output::new(&mut out, rows);
                    // SAFETY: one thread.
                    unsafe { matrix.mul_rows(0..rows, 0, &x, &out, 0) };
                });
                let work = match tokens {
                    1 => matrix.bytes().len(),
                    _ => tokens * rows * COLS,
                };
                speeds += &format!("{:8.1}", work as f64 * 1e-9 / seconds);
            }
            let load = best(|| x.load(&inputs, 256, COLS, format.rounding()));
            println!(
                "{:7} {:12}{speeds} {:14.0}",
                format.name,
                format!("{simd:?}"),
                1e6 * load
            );
        }
    }
}

/// Seconds of the fastest of several calls.
fn best(mut work: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    while begin.elapsed() < TIME {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
