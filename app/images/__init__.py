"""Pictures and arrays of people, in and out: predict, evaluate, accuracy."""
