//! Without a driver there is an error that says what to do, and no panic. In a process of its own, for others load the
//! emulator.

use nn_kernels::{Cuda, DeviceError, Open};

#[test]
fn a_machine_without_a_driver_gives_an_error_that_says_what_to_do() {
    // With a driver there may be a GPU, too.
    match Cuda::<f32>::new(0) {
        Err(error @ DeviceError::NoCudaDriver) => {
            assert!(error.to_string().contains("Install NVIDIA's driver"), "{error}");
            assert_eq!(Cuda::<f64>::open().err(), Some(DeviceError::NoCudaDriver));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(_) => eprintln!("skipped: there is a GPU"),
    }
}
