"""What is known of a training afterwards: the record of its epochs, and the page that is made from it."""
