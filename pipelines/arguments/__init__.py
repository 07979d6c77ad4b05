"""What can be asked of `fewtune`: each command's options, and the values given for them."""
