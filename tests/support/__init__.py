"""What tests share: brokers with the same verbs at every level."""
