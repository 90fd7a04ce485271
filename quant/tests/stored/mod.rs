//! Safetensors files for the tests.

/// A tensor: name, type, shape, bytes.
pub type Stored<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);

/// Returns the bytes of a file with these tensors.
pub fn safetensors(tensors: &[Stored]) -> Vec<u8> {
    let (mut header, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let range = [data.len(), data.len() + bytes.len()];
        header.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":{range:?}}}"#
        ));
        data.extend(bytes);
    }
    let header = format!("{{{}}}", header.join(","));
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &data].concat()
}
