"""What is learned: data sets, how they are spread over clients, and the models that fit them."""
