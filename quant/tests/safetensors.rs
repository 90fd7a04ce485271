//! Checkpoints: one file, shards, odd offsets, files that lie.

use std::path::Path;

use waterline_quant::safetensors::Checkpoint;

/// Writes a file: a JSON header, padded by `pad` spaces, and data.
fn write(path: &Path, header: &str, pad: usize, data: &[u8]) {
    let header = format!("{header}{}", " ".repeat(pad));
    let bytes = [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        data,
    ]
    .concat();
    std::fs::write(path, bytes).unwrap();
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

const TWO: &str = r#"{"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}}"#;

fn two() -> Vec<u8> {
    [floats(&[1.5, -2.0]), vec![0x80, 0x3f, 0x00, 0xc0]].concat()
}

#[test]
fn tensors_are_read_wherever_they_lie() {
    let folder = tempfile::tempdir().unwrap();
    // Every offset of the data modulo 4: aligned ones are used in place, others copied.
    for pad in 0..4 {
        write(&folder.path().join("model.safetensors"), TWO, pad, &two());
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b"]);
        let a = checkpoint.tensor("a").unwrap();
        assert_eq!(
            (a.format.name, &a.shape[..], a.to_f32()),
            ("F32", &[2, 1][..], vec![1.5, -2.0])
        );
        assert!((a.data.as_ptr() as usize).is_multiple_of(4));
        assert_eq!(checkpoint.tensor("b").unwrap().to_f32(), [1.0, -2.0]);
        assert_eq!(checkpoint.shape("b"), Some(&[2][..]));
    }
}

#[test]
fn integers_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("case.safetensors");
    let header = r#"{"x":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},"y":{"dtype":"I32","shape":[1],"data_offsets":[16,20]}}"#;
    let data = [
        &7i64.to_le_bytes()[..],
        &(-1i64).to_le_bytes(),
        &(-5i32).to_le_bytes(),
    ]
    .concat();
    write(&path, header, 0, &data);
    let checkpoint = Checkpoint::open_file(&path).unwrap();
    assert_eq!(checkpoint.read_i64("x").unwrap(), (vec![2], vec![7, -1]));
    assert_eq!(checkpoint.read_i64("y").unwrap(), (vec![1], vec![-5]));
    let message = checkpoint.tensor("x").unwrap_err().to_string();
    assert!(
        message.contains("case.safetensors") && message.contains("'x'") && message.contains("I64"),
        "{message}"
    );
    let message = checkpoint.read_i64("z").unwrap_err().to_string();
    assert!(
        message.contains("'z'") && message.contains("missing"),
        "{message}"
    );
}

#[test]
fn shards_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let index = |map: &str| std::fs::write(at("model.safetensors.index.json"), map).unwrap();
    write(&at("1.safetensors"), TWO, 0, &two());
    let other = r#"{"c":{"dtype":"F16","shape":[],"data_offsets":[0,2]}}"#;
    write(&at("2.safetensors"), other, 0, &[0x00, 0x3c]);

    index(r#"{"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"}}"#);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.names().count(), 3);
    assert_eq!(checkpoint.tensor("c").unwrap().to_f32(), [1.0]);

    for (map, part) in [
        (r#"{"weight_map":{"d":"2.safetensors"}}"#, "'d'"),
        (r#"{"weight_map":{"a":"3.safetensors"}}"#, "3.safetensors"),
        (
            r#"{"weight_map":{"a":"../1.safetensors"}}"#,
            "../1.safetensors",
        ),
        (r#"{"weight_map":{"a":7}}"#, "'a'"),
        (r#"{"weights":{}}"#, "weight_map"),
        ("{", "JSON"),
    ] {
        index(map);
        let message = Checkpoint::open(folder.path()).err().unwrap().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let message = Checkpoint::open(folder.path()).err().unwrap().to_string();
    assert!(
        message.contains("model.safetensors") && message.contains("open"),
        "{message}"
    );
    write(&path, TWO, 0, &two());
    let bytes = std::fs::read(&path).unwrap();
    for len in 0..bytes.len() {
        std::fs::write(&path, &bytes[..len]).unwrap();
        assert!(Checkpoint::open_file(&path).is_err(), "{len} bytes");
    }
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &flipped).unwrap();
        if let Ok(checkpoint) = Checkpoint::open_file(&path) {
            for name in checkpoint.names() {
                let _ = checkpoint.tensor(name).map(|tensor| tensor.to_f32());
            }
        }
    }
}
