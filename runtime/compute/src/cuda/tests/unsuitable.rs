//! Error messages for a missing device, and for a device that is too small.

use crate::cuda::Device;

#[test]
fn without_a_driver_or_such_a_gpu_the_sentence_says_so() {
    let error = Device::open(99).err().expect("no hundred GPUs").to_string();
    let known = [
        "no GPU: the NVIDIA driver (libcuda) is not installed; use the CPU",
        "no GPU: the NVIDIA driver is too old; install a newer one",
        "no GPU: no device found",
        "no GPU: there is no device of that number",
    ];
    assert!(known.contains(&error.as_str()), "{error}");
}

#[test]
fn a_device_that_is_too_small_for_a_model_is_not_chosen_for_it() {
    let device = Device::emulated_with(1000);
    device.suits(800).expect("room for 1000 bytes");
    let error = device.suits(804).unwrap_err().to_string();
    let expected =
        "emulator: 1000 bytes of its memory are free; a model of 804 bytes should have 1005";
    assert_eq!(error, expected);
    let lost = Device::emulated_until(0).suits(1).unwrap_err();
    assert_eq!(lost.to_string(), "emulator: the device was lost");
}
