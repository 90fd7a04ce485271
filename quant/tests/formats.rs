//! Formats compared with vectors made by ggml (`data/make_vectors.py`, `data/make_vectors.c`), and the error of the encoders. The vectors of
//! PQ2_0 and PTQ1_0, which ggml does not have, were computed from their public description.

use std::path::Path;

use waterline_quant::{
    BF16, Bytes, F16, F32, F64, FORMATS, Format, Matrix, NVFP4, NVFP4S, PQ2_0, PTQ1_0, Q4_0, Q4_K,
    Q5_K, Q6_K, Q8_0, REORDERED, Tensor, nvfp4_with_scales,
};

fn data(name: &str) -> Vec<u8> {
    std::fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data")
            .join(name),
    )
    .unwrap()
}

fn floats(name: &str) -> Vec<f32> {
    data(name)
        .as_chunks()
        .0
        .iter()
        .map(|&bytes| f32::from_le_bytes(bytes))
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn encode(format: &Format, values: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0; format.row_bytes(values.len()).unwrap()];
    format.encode(values, &mut blocks);
    blocks
}

fn decode(format: &Format, blocks: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; blocks.len() / format.block_bytes * format.block_len];
    format.decode(blocks, &mut values);
    values
}

#[test]
fn decoding_matches_ggml_bit_for_bit() {
    let is_tested = |format: &&Format| ![&F32, &NVFP4S].contains(format);
    for format in FORMATS.into_iter().filter(is_tested) {
        let values = decode(format, &data(&format!("{}.blocks", format.name)));
        assert_eq!(
            bits(&values),
            bits(&floats(&format!("{}.values", format.name))),
            "{format}"
        );
    }
}

#[test]
fn a_scale_for_a_matrix_multiplies_the_values_of_nvfp4() {
    let values = gaussian(8 * 128);
    let data = Bytes::from_vec(encode(&NVFP4, &values));
    let tensor = Tensor::new(&NVFP4, vec![8, 128], data).unwrap();
    for scales in [&[0.3f32][..], &[0.3, -1.5]] {
        let scaled = nvfp4_with_scales(&tensor, scales).unwrap();
        assert_eq!(scaled.format, &NVFP4S);
        let both = tensor.to_f32().into_iter().zip(scaled.to_f32());
        for (i, (plain, scaled)) in both.enumerate() {
            let expected = plain * scales[i * scales.len() / values.len()];
            assert!(
                (scaled - expected).abs() <= 1e-6 * expected.abs(),
                "{i}: {scaled}"
            );
        }
    }
}

#[test]
fn encoding_matches_ggml_bit_for_bit() {
    let values = floats("encode.values");
    for format in [&F16, &BF16, &Q8_0, &Q4_0] {
        assert!(
            encode(format, &values) == data(&format!("{}.blocks", format.name)),
            "{format}"
        );
    }
    for format in [&F32, &F64] {
        let decoded = decode(format, &encode(format, &values));
        assert_eq!(bits(&decoded), bits(&values), "{format}");
    }
}

/// The block formats that both llama-quantize and this crate encode.
fn llama_quantize_formats() -> impl Iterator<Item = &'static Format> {
    let formats = FORMATS.into_iter();
    let formats = formats.filter(|format| format.block_len > 1 && format.has_encoder());
    formats.filter(|format| ![&PQ2_0, &PTQ1_0].contains(format))
}

#[test]
fn encoding_matches_llama_quantize_bit_for_bit() {
    let values = floats("rows.values");
    for format in llama_quantize_formats() {
        let expected = data(&format!("{}.encoded", format.name));
        let row_bytes = format.row_bytes(256).unwrap();
        let rows = values.chunks(256).zip(expected.chunks(row_bytes));
        for (row, (values, expected)) in rows.enumerate() {
            assert_eq!(encode(format, values), expected, "{format}, row {row}");
        }
    }
}

#[test]
fn encoding_with_an_importance_matrix_matches_llama_quantize_bit_for_bit() {
    let (values, importance) = (floats("rows.values"), floats("row.importance"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut tested = 0;
    for format in llama_quantize_formats() {
        let weighted = folder.join(format!("{}.weighted", format.name));
        // Q8_0, the 4-bit floats and the formats below 2.5 bits are encoded without an importance matrix.
        let name = if weighted.exists() {
            "weighted"
        } else {
            "encoded"
        };
        tested += usize::from(weighted.exists());
        let expected = data(&format!("{}.{name}", format.name));
        let row_bytes = format.row_bytes(256).unwrap();
        let rows = values.chunks(256).zip(expected.chunks(row_bytes));
        for (row, (values, expected)) in rows.enumerate() {
            let mut blocks = vec![0; row_bytes];
            format.encode_row(values, &importance, &mut blocks);
            assert_eq!(blocks, expected, "{format}, row {row}");
        }
    }
    assert_eq!(tested, 12);
}

/// Deterministic Gaussian numbers.
fn gaussian(len: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 + 0.5) / (1u64 << 24) as f32
    };
    (0..len)
        .map(|_| (-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos())
        .collect()
}

fn relative_error(format: &Format, values: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let decoded = decode(format, &encode(format, values));
    let error: f64 = values
        .iter()
        .zip(&decoded)
        .map(|(a, b)| square(a - b))
        .sum();
    (error / values.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

#[test]
fn encoders_are_as_precise_as_their_bits_allow() {
    // Root mean square error divided by the root mean square of the numbers, for Gaussian weights.
    let values = gaussian(1 << 16);
    for (format, bound) in BOUNDS {
        let error = relative_error(format, &values);
        println!("{format}: {error:.5}");
        assert!(error <= bound, "{format}: {error}, bound {bound}");
        for factor in [0.02, 1e3] {
            let scaled: Vec<f32> = values.iter().map(|x| x * factor).collect();
            assert!(
                relative_error(format, &scaled) <= bound * 1.05,
                "{format}, times {factor}"
            );
        }
    }
}

static BOUNDS: [(&Format, f64); 7] = [
    (&F16, 0.00022),
    (&BF16, 0.0017),
    (&Q8_0, 0.0055),
    (&Q6_K, 0.018),
    (&Q5_K, 0.0362),
    (&Q4_K, 0.0714),
    (&Q4_0, 0.087),
];

#[test]
fn encoders_survive_odd_numbers() {
    for format in FORMATS.into_iter().filter(|format| format.has_encoder()) {
        for special in [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN_POSITIVE,
            1e-45,
        ] {
            let mut values = gaussian(512);
            values[300] = special;
            decode(format, &encode(format, &values));
            decode(format, &encode(format, &[special; 256]));
        }
        // Constants are representable in every format, up to the rounding of the scale.
        let most = if format.name == "NVFP4" {
            0.0625
        } else {
            0.002
        };
        for constant in [0.0, 1.0, -0.5] {
            let decoded = decode(format, &encode(format, &[constant; 256]));
            for value in decoded {
                assert!(
                    (value - constant).abs() <= most * constant.abs(),
                    "{format}: {constant} became {value}"
                );
            }
        }
    }
}

#[test]
fn imitated_blocks_have_the_magnitude_of_the_numbers() {
    let values: Vec<f32> = gaussian(4096).iter().map(|x| x * 0.02).collect();
    for format in FORMATS.into_iter().filter(|format| !format.has_encoder()) {
        let mut blocks = vec![0; format.row_bytes(values.len()).unwrap()];
        format.encode_or_imitate(&values, &mut blocks);
        let decoded = decode(format, &blocks);
        for (decoded, values) in decoded.chunks(256).zip(values.chunks(256)) {
            let largest = |x: &[f32]| x.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
            let ratio = largest(decoded) / largest(values);
            assert!((0.5..=1.5).contains(&ratio), "{format}: {ratio}");
        }
    }
}

#[test]
fn decoding_survives_any_bytes() {
    for format in FORMATS {
        for byte in 0..=255 {
            decode(format, &vec![byte; format.block_bytes]);
        }
    }
}

#[test]
fn formats_are_found_by_name_and_number() {
    for format in FORMATS {
        assert_eq!(
            Format::by_name(&format.name.to_lowercase()).unwrap(),
            format
        );
        assert_eq!(Format::by_ggml_type(format.ggml_type).unwrap(), format);
        assert_eq!(
            format.row_bytes(512).unwrap(),
            512 / format.block_len * format.block_bytes
        );
    }
    let message = Format::by_name("q8_1").unwrap_err().to_string();
    assert!(
        message.contains("'q8_1'") && message.contains("Q4_K"),
        "{message}"
    );
    assert!(Format::by_ggml_type(9).is_err());
    let message = Q4_K.row_bytes(300).unwrap_err().to_string();
    assert!(
        message.contains("300") && message.contains("256"),
        "{message}"
    );
    assert!(F32.tensor_bytes(&[usize::MAX, usize::MAX]).is_err());
    assert_eq!(F32.tensor_bytes(&[]).unwrap(), 4);
}

#[test]
fn another_order_has_the_same_numbers() {
    let values = gaussian(4 * 1024);
    for format in REORDERED {
        let plain = format.plain();
        let stored = encode(plain, &values);
        let ordered = format.reorder(&stored, plain).expect("an order of it");
        assert_ne!(ordered, stored, "{format}");
        assert_eq!(ordered, encode(format, &values), "{format}");
        assert_eq!(decode(format, &ordered), decode(plain, &stored), "{format}");
        assert_eq!(plain.reorder(&ordered, format).as_ref(), Some(&stored));
        assert_eq!(format.reorder(&stored, &Q8_0), None);
        // Each row has two blocks.
        let matrix = Matrix::new(format, 4, 1024, Bytes::from_vec(ordered)).expect("matrix");
        let rows = Matrix::new(plain, 4, 1024, Bytes::from_vec(stored)).expect("matrix");
        let layouts = [&matrix, &rows].map(|m| m.device_layout().unwrap_or(m.bytes().to_vec()));
        assert_eq!(layouts[0], layouts[1], "{format}: on a device");
    }
}
